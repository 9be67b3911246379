/* Links as lanes: what is in flight on the links of each tier of each node, and the share of their capacity that it takes. */
"use strict";

const MOST_ABREAST = 4;
const LINK_SAID = {
  heat: "share of the capacity that is taken; zoom in until what is in flight appears",
  steps: "a bar is what a step exchanges, stronger where it takes more of the capacity",
  operators: "a bar is a collective or transfer in flight, stronger where it takes more of the capacity",
};

function bytesText(bytes) {
  const [unit, size] = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, one]) => bytes >= one) || ["B", 1];
  return Number((bytes / size).toPrecision(4)).toLocaleString("en") + " " + unit;
}

const shareText = share => Number((100 * share).toPrecision(3)) + " %";

class LinkLanes extends TimeFigure {
  constructor(plot, load, levels) {
    super(plot, load.run.end, load.lanes.length);
    Object.assign(this, {load, levels, run: load.run, bars: new Map()});
    this.note = document.getElementById(plot.id + "-note");
    this.legend = document.getElementById(plot.id + "-legend");
    this.show(...this.whole, false);
    linkedFigures.add(this);
  }

  rowTicks({top, bottom}) {
    const rows = this.load.lanes.map((_, row) => row).filter(row => row >= top && row <= bottom);
    const every = Math.ceil(rows.length / Math.max(4, (this.plot.clientHeight - 80) / 13)), values = rows.filter((_, at) => at % every === 0);
    return {values, texts: values.map(row => escaped(this.load.lanes[row].name))};
  }

  fill(raster) {
    const {view} = this, found = this.levels.levelOf(view, raster.width, this.run.places), {windows} = this.run.words;
    const told = !windows || windows.some(([from, to]) => from <= view.from && view.to <= to);
    const level = found.level === "heat" || !told ? "heat" : found.level === "steps" ? "steps" : "operators";
    this.bars = new Map();
    if (level === "heat") this.drawHeat(raster);
    else this.drawBars(raster, level);
    return {...found, level};
  }

  drawHeat(raster) {
    const {view} = raster, bins = Math.min(raster.width, 2048), binNs = (view.to - view.from) / bins, {load} = this;
    const rows = load.lanes.map((_, lane) => resampled(load.sharesOf(lane), this.end, view, bins));
    this.run.eachMove(view.from, view.to, move => load.moveOn(move, (way, payload, start, end) => {
      for (const [lane, taken] of load.laneOfWay[way])
        addBusy(rows[lane], (start - view.from) / binNs, (end - view.from) / binNs, taken * payload / Math.max(1, load.laneCould(lane, start, end)));
    }));
    rows.forEach((busy, row) => { if (row > view.top - 1 && row < view.bottom + 1) this.levels.heatRow(raster, row, busy); });
    this.busy = rows;
  }

  /* Bars of the lanes: {start, end, bytes, share, name, of}, those at one time beside each other. */
  drawBars(raster, level) {
    const {from, to} = raster.view, {run, load} = this;
    run.eachPass(from, to, (pass, index) => {
      if (level === "steps") return this.stepBars(pass, index);
      const {start, end} = run.nodeTimes(pass, index), program = run.programs[run.runs.program[pass]];
      load.eachExchange(pass, index, (node, payload, way) => {
        if (start[node] < to && end[node] > from)
          this.add(way, payload, start[node], end[node], nodeName(run, program, node), stepLine(run, pass, index), program.ops[program.nodeSymbol[node]]);
      });
    });
    load.eachTransfer(from, to, (way, payload, start, end, name, of) => this.add(way, payload, start, end, name, of, run.words.ops.indexOf("send")));
    for (const [lane, bars] of this.bars) this.drawLane(raster, lane, bars);
  }

  add(way, payload, start, end, name, of, op) {
    for (const [lane, taken] of this.load.laneOfWay[way]) this.put(lane, {start, end, bytes: taken * payload, name, of, op});
  }

  put(lane, bar) {
    if (!this.bars.has(lane)) this.bars.set(lane, []);
    this.bars.get(lane).push({...bar, share: bar.bytes / Math.max(1, this.load.laneCould(lane, bar.start, bar.end))});
  }

  stepBars(pass, index) {
    const {run, load} = this, bytes = new Map(), start = run.startOf(pass, index), end = run.endOf(pass, index);
    load.eachExchange(pass, index, (_, payload, way) => {
      for (const [lane, taken] of load.laneOfWay[way]) bytes.set(lane, (bytes.get(lane) || 0) + taken * payload);
    });
    for (const [lane, some] of bytes) this.put(lane, {start, end, bytes: some, name: "exchanges", of: stepLine(run, pass, index), op: -1});
  }

  /* Bars that overlap lie beside each other, in as many parts of the row as there are at most at one time. */
  drawLane(raster, lane, bars) {
    const until = [];
    bars.sort((a, b) => a.start - b.start);
    for (const bar of bars) {
      const free = until.findIndex(end => end <= bar.start);
      bar.part = free >= 0 ? free : Math.min(until.length, MOST_ABREAST - 1);
      until[bar.part] = Math.max(until[bar.part] || 0, bar.end);
    }
    const [top, bottom] = raster.lines(lane), each = (bottom - top) / Math.max(1, until.length);
    for (const bar of bars) {
      const from = raster.x(bar.start), left = Math.max(0, Math.floor(from)), right = Math.min(raster.width, Math.max(left + 1, Math.floor(raster.x(bar.end))));
      const first = Math.floor(top + bar.part * each), last = Math.max(first + 1, Math.floor(top + (bar.part + 1) * each) - (each > 4 ? 1 : 0));
      if (left < right) raster.fill(left, right, first, Math.min(raster.height, last), this.shade(bar));
    }
  }

  shade({op, share}) {
    this.shades ||= new Map();
    const {colours, family_of_op} = this.run.words, colour = op >= 0 ? colours[family_of_op[op]] : this.levels.streamColours[this.run.words.streams.indexOf("comm")];
    if (!this.shades.has(colour)) this.shades.set(colour, shades(colour, 0.3));
    return this.shades.get(colour)[Math.round(64 * Math.min(1, share))];
  }

  write(context, raster, drawn) {
    const {level} = drawn, many = [...this.bars.values()].reduce((sum, bars) => sum + bars.length, 0);
    this.note.textContent = timeText(Math.round(this.view.to - this.view.from)) + " in view" + (level === "heat" ? "" : ", " + many.toLocaleString("en") + " in flight") + ": " + LINK_SAID[level] + ".";
    if (this.legend.dataset.level === level) return;
    this.legend.dataset.level = level;
    const {words} = this.run, hex = this.levels.streamColours[words.streams.indexOf("comm")];
    const load = legendEntry(`linear-gradient(90deg, ${hex}4d, ${hex})`, "a little to all of the capacity"), families = new Set([...this.bars.values()].flat().filter(bar => bar.op >= 0).map(bar => words.family_of_op[bar.op]));
    this.legend.replaceChildren(...(level === "heat" ? [legendEntry(heatGradient(), "idle to all of the capacity")] : [load, ...[...families].map(at => legendEntry(words.colours[at], words.families[at]))]));
  }

  recolour() {
    this.levels.recolour();
    this.shades = null;
    delete this.legend.dataset.level;
    this.draw();
  }

  toldAt(lane, instant) {
    const {load, view} = this, {name, links, capacity} = load.lanes[lane], slack = 2 * (view.to - view.from) / Math.max(1, this.area.w);
    const where = name + ": " + links.length + (links.length === 1 ? " link" : " links") + " of " + bytesText(capacity) + "/s together";
    if (this.drawn.level === "heat") {
      const busy = this.busy[lane], share = busy[Math.min(busy.length - 1, Math.floor((instant - view.from) / (view.to - view.from) * busy.length))];
      return [where, shareText(share) + " of it taken at " + instantText(Math.round(instant)), ...this.weakLines(links, instant)];
    }
    const some = (this.bars.get(lane) || []).filter(bar => bar.start <= instant + slack && bar.end >= instant - slack);
    if (!some.length) return null;
    const lines = some.slice(0, 5).flatMap(bar => [
      bar.name + " of " + bar.of, bytesText(bar.bytes) + ", " + shareText(bar.share) + " of the capacity, " + spanLine(bar.start, bar.end),
    ]);
    return [where, ...lines, ...(some.length > 5 ? [some.length - 5 + " more"] : []), ...this.weakLines(links, instant)];
  }

  weakLines(links, instant) {
    const found = this.load.faults.filter(([some, at, until]) => at <= instant && (until === null || instant < until) && some.some(link => links.includes(link)));
    return found.map(fault => fault[4] + ": " + shareText(fault[3]) + " of its capacity left");
  }
}

async function clustersimLinkLanes(id) {
  const load = await linkLoad();
  linkedFigures.links = new LinkLanes(document.getElementById(id), load, new Levels(load.run));
}
