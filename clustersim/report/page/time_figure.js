/* A figure over the time of the run with rows of its own: plotly draws the axes, what is in view is drawn on a canvas beneath
   them. The wheel, keys and boxes zoom, and other figures over time follow. */
"use strict";

const NS = 1e9, LEAST_NS = 20;

/* A duration with the unit that suits it; minutes from ten of them on, hours from two, as in the terminal. */
function timeText(ns) {
  const size = Math.abs(ns);
  if (size >= 7.2e12) return (ns / 3.6e12).toPrecision(4) + " h";
  if (size >= 6e11) return (ns / 6e10).toPrecision(4) + " min";
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

class TimeFigure {
  /* `end` is where the run ends, ns, and `rows` how many rows there are. */
  constructor(plot, end, rows) {
    Object.assign(this, {plot, end, view: {from: 0, to: end, top: -0.5, bottom: rows - 0.5}});
    this.countRows(rows);
    this.canvas = plot.insertBefore(document.createElement("canvas"), plot.firstChild);
    this.canvas.className = "beneath";
    this.tip = plot.appendChild(document.createElement("div"));
    this.tip.className = "tip";
    this.tip.hidden = true;
    this.listen();
  }

  countRows(rows) { this.whole = [0, this.end, -0.5, rows - 0.5]; }

  get area() { return this.plot._fullLayout._size; }

  listen() {
    const {plot} = this;
    plot.tabIndex = 0;
    plot.on("plotly_relayout", change => this.relaid(change));
    plot.on("plotly_relayouting", () => this.follow());
    plot.on("plotly_doubleclick", () => this.show(...this.whole));
    plot.addEventListener("wheel", event => this.wheel(event), {passive: false});
    plot.addEventListener("keydown", event => this.key(event));
    plot.addEventListener("mousemove", event => this.point(event));
    plot.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    new ResizeObserver(() => this.draw()).observe(plot);
  }

  relaid(change) {
    if (this.moving) return;
    if (change["xaxis.autorange"] || change["yaxis.autorange"]) this.show(...this.whole);
    else this.follow(true);
  }

  /* Take over what the axes show. */
  follow(settled = false) {
    const {xaxis, yaxis} = this.plot._fullLayout, [from, to] = xaxis.range, y = yaxis.range;
    this.view = this.bounded({from: from * NS, to: to * NS, top: Math.min(...y), bottom: Math.max(...y)});
    if (settled) this.show(this.view.from, this.view.to); else this.draw();
  }

  bounded({from, to, top, bottom}) {
    const {end, whole} = this, width = Math.min(Math.max(LEAST_NS, to - from), Math.max(end, LEAST_NS));
    const begin = Math.min(Math.max(0, from), Math.max(0, end - width));
    return {from: begin, to: begin + width, top: Math.max(-0.5, top), bottom: Math.min(whole[3], Math.max(bottom, top + 1))};
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
    const raster = new Raster(width, height, view), drawn = this.fill(raster), context = canvas.getContext("2d");
    context.putImageData(raster.image, 0, 0);
    this.write(context, raster, drawn, scale);
    this.drawn = {...drawn, ms: performance.now() - begun};
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
      0: () => this.show(...this.whole), Home: () => this.show(...this.whole),
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
    const told = inside && row >= 0 && row <= this.whole[3] && event.buttons === 0 ? this.toldAt(row, instant) : null;
    this.tip.hidden = !told;
    if (told) showTip(this.tip, told, left, top, this.plot);
  }
}
