/* The lanes: what every stream of every device did in all of the run. Plotly draws the axes; what is in view is drawn on a
   canvas beneath them, unfolded anew at every zoom. */
"use strict";

const NS = 1e9, LEAST_NS = 20;
const SAID = {
  heat: "share of its time in which each stream is busy; zoom in until steps, layers and operators appear",
  steps: "a bar is a step, stronger where the stream is busier in it",
  layers: "a bar is a layer on a stream, stronger where it is busier",
  operators: "a bar is an operator; point at one for its name, duration and what it waited for",
};

function timeText(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return (ns / 1e9).toPrecision(4) + " s";
  if (size >= 1e6) return (ns / 1e6).toPrecision(4) + " ms";
  return size >= 1e3 ? (ns / 1e3).toPrecision(4) + " us" : ns + " ns";
}

const instantText = ns => (ns / NS).toFixed(9).replace(/0+$/, "").replace(/\.$/, "") + " s";

/* Ticks of a window, as seconds of the run and texts that begin at a round instant: {base, unit, values, texts}. */
function timeTicks(from, to) {
  const rough = Math.max(1, (to - from) / 7), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(one => one >= rough);
  const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(([, one]) => step >= one) || ["ns", 1];
  const coarse = step * 1000, base = size === NS ? 0 : Math.floor(from / coarse) * coarse, values = [], texts = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    values.push(at / NS);
    texts.push(String(Math.round((at - base) / step) * step / size).replace(/(\.\d{6}).*/, "$1"));
  }
  return {base, unit, values, texts};
}

class Lanes {
  constructor(plot, run, words) {
    Object.assign(this, {plot, run, words, levels: new Levels(run), view: {from: 0, to: run.end, top: -0.5, bottom: run.rows.length - 0.5}});
    this.note = document.getElementById(plot.id + "-note");
    this.legend = document.getElementById(plot.id + "-legend");
    this.canvas = plot.insertBefore(document.createElement("canvas"), plot.firstChild);
    this.canvas.className = "lanes";
    this.tip = plot.appendChild(document.createElement("div"));
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.listen();
    const {from, to} = words.view || this.view;
    this.show(from, to);
  }

  get area() { return this.plot._fullLayout._size; }

  listen() {
    const {plot} = this;
    plot.tabIndex = 0;
    plot.on("plotly_relayout", change => this.relaid(change));
    plot.on("plotly_relayouting", () => this.follow());
    plot.on("plotly_doubleclick", () => this.show(0, this.run.end, -0.5, this.run.rows.length - 0.5));
    plot.addEventListener("wheel", event => this.wheel(event), {passive: false});
    plot.addEventListener("keydown", event => this.key(event));
    plot.addEventListener("mousemove", event => this.point(event));
    plot.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.draw()).observe(plot);
    for (const button of document.querySelectorAll("[data-lanes='" + plot.id + "']"))
      button.addEventListener("click", () => this.show(...this.windowOf(button.dataset.view)));
  }

  /* What a button shows: [from, to] in ns. */
  windowOf(name) {
    const {busiest} = this.words, {end} = this.run;
    if (name === "run" || !busiest) return [0, end, -0.5, this.run.rows.length - 0.5];
    const [replica, step] = busiest, place = this.run.placeOf(this.run.stageBase(replica, 0)), run = this.run.runOfStep(place, step);
    const index = step - this.run.runs.step[run], start = this.run.startOf(run, index), stop = this.run.endOf(run, index);
    if (name === "second") return [Math.max(0, (start + stop) / 2 - NS / 2), Math.min(end, (start + stop) / 2 + NS / 2)];
    if (name === "step") return [start - (stop - start) * 0.05, stop + (stop - start) * 0.05];
    return this.layerOf(run, index);
  }

  layerOf(run, index) {
    const layers = [...layersOf(this.run, run, index)].filter(one => one.layer >= 0), middle = layers[layers.length >> 1];
    const mine = layers.filter(one => one.layer === (middle ? middle.layer : -1));
    return mine.length ? [Math.min(...mine.map(one => one.start)), Math.max(...mine.map(one => one.end))] : [0, this.run.end];
  }

  relaid(change) {
    if (this.moving) return;
    if (change["xaxis.autorange"] || change["yaxis.autorange"]) this.show(0, this.run.end, -0.5, this.run.rows.length - 0.5);
    else this.follow(true);
  }

  /* Take over what the axes show. */
  follow(settled = false) {
    const {xaxis, yaxis} = this.plot._fullLayout, [from, to] = xaxis.range, y = yaxis.range;
    this.view = this.bounded({from: from * NS, to: to * NS, top: Math.min(...y), bottom: Math.max(...y)});
    if (settled) this.show(this.view.from, this.view.to); else this.draw();
  }

  bounded({from, to, top, bottom}) {
    const {end, rows} = this.run, width = Math.min(Math.max(LEAST_NS, to - from), Math.max(end, LEAST_NS));
    const begin = Math.min(Math.max(0, from), Math.max(0, end - width));
    return {from: begin, to: begin + width, top: Math.max(-0.5, top), bottom: Math.min(rows.length - 0.5, Math.max(bottom, top + 1))};
  }

  /* Show [from, to) in ns, and rows from top to bottom; those that are shown already by default. */
  show(from, to, top = this.view.top, bottom = this.view.bottom, told = true) {
    this.view = this.bounded({from, to, top, bottom});
    this.draw();
    this.moveAxes();
    if (told) linkedFigures.tell(this, this.view.from / NS, this.view.to / NS);
  }

  /* Let the axes show the view; what is asked for while they move comes next. */
  moveAxes() {
    this.behind = Boolean(this.moving);
    if (this.moving) return;
    const {view} = this, ticks = timeTicks(view.from, view.to);
    const since = ticks.base ? instantText(ticks.base) + " of the run" : "the start of the run";
    this.moving = Plotly.relayout(this.plot, {
      "xaxis.range": [view.from / NS, view.to / NS], "xaxis.tickvals": ticks.values, "xaxis.ticktext": ticks.texts,
      "xaxis.title.text": "time since " + since + " (" + ticks.unit + ")", ...this.rowAxis(view),
    }).then(() => {
      this.moving = null;
      if (this.behind) this.moveAxes();
    });
  }

  /* Another figure shows these seconds of the run. */
  follows(from, to) { this.show(from * NS, to * NS, this.view.top, this.view.bottom, false); }

  /* What changes of the axis of rows: nothing where the same ones are in view. */
  rowAxis({top, bottom}) {
    const shown = [top, bottom, this.plot.clientHeight].join(" "), {values, texts} = this.rowTicks({top, bottom});
    if (shown === this.rowsShown) return {};
    this.rowsShown = shown;
    return {"yaxis.range": [bottom, top], "yaxis.tickvals": values, "yaxis.ticktext": texts};
  }

  rowTicks({top, bottom}) {
    const {rows, words} = this.run, fit = Math.max(4, (this.plot.clientHeight - 110) / 13), all = [];
    for (let row = Math.max(0, Math.ceil(top)); row <= Math.min(rows.length - 1, bottom); row++) all.push(row);
    const heads = all.filter(row => row === all[0] || rows[row][0] !== rows[row - 1][0]), crowded = all.length > fit;
    const values = crowded ? heads.filter((_, index) => index % Math.ceil(heads.length / fit) === 0) : all;
    return {values, texts: values.map(row => escaped(this.rowName(row, !crowded)))};
  }

  rowName(row, stream = true) {
    const [rank, number] = this.run.rows[row], {devices, streams} = this.run.words;
    return devices[rank] + (stream ? " " + streams[number] : "");
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.paint(); });
  }

  paint() {
    const {l, t, w, h} = this.area, {canvas, view} = this, begun = performance.now();
    const scale = Math.min(window.devicePixelRatio || 1, Math.sqrt(16e6 / Math.max(1, w * h)));
    const width = Math.max(1, Math.round(w * scale)), height = Math.max(1, Math.round(h * scale));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, {width, height});
    Object.assign(canvas.style, {left: l + "px", top: t + "px", width: w + "px", height: h + "px"});
    const raster = new Raster(width, height, view), drawn = this.levels.draw(raster), context = canvas.getContext("2d");
    context.putImageData(raster.image, 0, 0);
    if (drawn.level !== "heat") labels(this, context, raster, drawn.level, scale);
    this.drawn = {...drawn, ms: performance.now() - begun};
    this.tell(drawn);
  }

  tell({level, passes, spans}) {
    const many = Math.round(level === "operators" || level === "layers" ? spans : passes).toLocaleString("en");
    this.note.textContent = timeText(Math.round(this.view.to - this.view.from)) + " in view, about " + many +
      (level === "operators" || level === "layers" ? " operators: " : " passes of stages: ") + SAID[level] + ".";
    if (this.legend.dataset.level !== level) drawLegend(this.legend, level, this.run.words);
  }

  wheel(event) {
    const {x, inside} = this.place(event);
    if (!inside) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
    else this.zoom(1.0015 ** event.deltaY, x);
  }

  zoom(factor, at = 0.5) {
    const {from, to} = this.view, width = (to - from) * factor, still = from + (to - from) * at;
    this.show(still - width * at, still + width * (1 - at));
  }

  pan(share) {
    const {from, to} = this.view;
    this.show(from + (to - from) * share, to + (to - from) * share);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), a: () => this.pan(-0.2), d: () => this.pan(0.2),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5), "-": () => this.zoom(2), s: () => this.zoom(2),
      0: () => this.show(...this.windowOf("run")), Home: () => this.show(...this.windowOf("run")),
    }[event.key];
    if (does) { event.preventDefault(); does(); }
  }

  /* Where the pointer is: shares of width and height of the plot, and whether it is inside. */
  place(event) {
    const {l, t, w, h} = this.area, box = this.plot.getBoundingClientRect();
    const left = event.clientX - box.left, top = event.clientY - box.top, x = (left - l) / w, y = (top - t) / h;
    return {x, y, left, top, inside: x >= 0 && x <= 1 && y >= 0 && y <= 1};
  }

  point(event) {
    const {x, y, left, top, inside} = this.place(event), {view} = this;
    const row = Math.round(view.top + y * (view.bottom - view.top)), instant = view.from + x * (view.to - view.from);
    const told = inside && this.run.rows[row] && event.buttons === 0 ? toldAt(this, row, instant) : null;
    this.tip.hidden = !told;
    if (told) showTip(this.tip, told, left, top, this.plot);
  }
}

async function clustersimLanes(id, words) {
  const data = JSON.parse(document.getElementById(id + "-data").textContent);
  const lanes = new Lanes(document.getElementById(id), await FoldedRun.read(data), words);
  linkedFigures.add(lanes);
  linkedFigures.lanes = lanes;
}
