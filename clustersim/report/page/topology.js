/* The picture of the cluster: links coloured by the share of their capacity that was taken in the window of the lanes. */
"use strict";

/* From which share on a link has which colour; the first ones carried nothing. */
const LOADS = [
  [0, "#b8c4cf"], [1e-12, "#8fb8d6"], [0.01, "#5b9bc8"], [0.05, "#3b82b5"], [0.1, "#2f9e8f"], [0.2, "#67a636"],
  [0.35, "#c9a400"], [0.5, "#e67e00"], [0.7, "#d64a1e"], [0.9, "#b3123c"],
];

class TopologyPicture {
  constructor(plot, load, edges, failing) {
    Object.assign(this, {plot, load, edges, failing, levels: new Levels(load.run)});
    this.note = document.getElementById(plot.id + "-note");
    this.drawLegend();
    linkedFigures.add(this);
    if (!linkedFigures.window) this.follows(0, load.run.end / NS);
  }

  recolour() {
    this.drawLegend();
    this.draw();
  }

  drawLegend() {
    document.getElementById(this.plot.id + "-legend").replaceChildren(...LOADS.map(([share, colour], at) =>
      legendEntry(colour, at ? "from " + shareText(share < 0.01 ? 0 : share) : "nothing")));
  }

  /* Whether passes in view are too many to be added up one by one, or the page lacks their operators. */
  isCoarse(from, to) {
    const {run} = this.load, {windows} = run.words, view = {from, to, top: -0.5, bottom: run.rows.length - 0.5};
    if (windows && !windows.some(([start, end]) => start <= from && to <= end)) return true;
    return this.levels.levelOf(view, 1400, run.places).level === "heat";
  }

  follows(from, to) {
    const [start, end] = [from * NS, Math.max(to * NS, from * NS + 1)], {load} = this;
    this.bytes = load.bytesOf(load.payloadsIn(start, end, this.isCoarse(start, end)));
    this.could = load.couldIn(start, end);
    this.window = [start, end];
    this.draw();
  }

  /* Bytes and the share of capacity of some links together. */
  together(links) {
    let bytes = 0, could = 0;
    for (const link of links) { const at = this.load.place.get(link); bytes += this.bytes[at]; could += this.could[at]; }
    return {bytes, share: could > 0 ? bytes / could : 0};
  }

  draw() {
    const lines = LOADS.map(() => ({x: [], y: []})), weak = {x: [], y: []}, told = {x: [], y: [], text: []};
    for (const edge of this.edges) {
      const [there, back] = [this.together(edge.there), this.together(edge.back)], share = Math.max(there.share, back.share);
      const line = lines[LOADS.findLastIndex(([from]) => share >= from)], weakened = this.weakLines(edge);
      for (const [x, y] of edge.points) { line.x.push(x); line.y.push(y); if (weakened.length) { weak.x.push(x); weak.y.push(y); } }
      for (const one of weakened.length ? [line, weak] : [line]) { one.x.push(null); one.y.push(null); }
      const middle = edge.points[edge.points.length >> 1], [x0, y0] = edge.points[0];
      told.x.push(edge.points.length > 2 ? middle[0] : (x0 + middle[0]) / 2);
      told.y.push(edge.points.length > 2 ? middle[1] : (y0 + middle[1]) / 2);
      told.text.push([this.sideText(edge.ends, edge.there, there), ...(edge.back.length ? [this.sideText([...edge.ends].reverse(), edge.back, back)] : []), ...weakened].join("<br>"));
    }
    this.paint(lines, weak, told);
  }

  sideText([from, to], links, {bytes, share}) {
    const capacity = links.reduce((sum, link) => sum + this.load.capacity[this.load.place.get(link)], 0);
    return escaped(from) + (from === to ? " inside" : " → " + escaped(to)) + ": " + bytesText(bytes) + ", " + shareText(share) + " of " + bytesText(capacity) + "/s" + (links.length > 1 ? " of " + links.length + " links" : "");
  }

  weakLines({there, back}) {
    const [from, to] = this.window, links = [...there, ...back];
    return this.load.faults.filter(([some, at, until]) => at < to && (until === null || until > from) && some.some(link => links.includes(link))).map(fault => escaped(fault[4]) + ": " + shareText(fault[3]) + " left");
  }

  paint(lines, weak, told) {
    const [from, to] = this.window, failed = this.failing.filter(([, , at, until]) => at < to && (until === null || until > from));
    const down = {x: failed.map(one => one[0]), y: failed.map(one => one[1]), text: failed.map(one => escaped(one[4]))}, all = [...lines, weak, told, down];
    const style = [...LOADS.map(([, colour], at) => ({color: themed(colour), width: 1 + 0.4 * at, dash: "solid"})), {color: themed("#B3261E"), width: 5, dash: "dot"}, {}, {}];
    Plotly.restyle(this.plot, {
      x: all.map(one => one.x), y: all.map(one => one.y), text: all.map(one => one.text || null), line: style,
    }, all.map((_, at) => at));
    this.note.textContent = "mean of " + timeText(Math.round(to - from)) + " from " + instantText(Math.round(from));
  }
}

async function clustersimTopology(id, edges, failing) {
  linkedFigures.topology = new TopologyPicture(document.getElementById(id), await linkLoad(), edges, failing);
}
