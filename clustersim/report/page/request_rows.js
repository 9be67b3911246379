/* Requests as rows: the slowest, and those that are asked for; phases over the time of the run. */
"use strict";

class RequestRows extends TimeFigure {
  constructor(plot, requests, many, request) {
    super(plot, requests.run.end, many);
    Object.assign(this, {requests, many, shown: [], phases: new Map(), asked: [], around: null});
    this.note = document.getElementById(plot.id + "-note");
    this.by = document.getElementById(plot.id + "-by");
    this.find = document.getElementById(plot.id + "-find");
    this.by.addEventListener("change", () => this.order());
    this.find.addEventListener("change", () => this.open(Number(this.find.value)));
    plot.addEventListener("mousedown", event => { this.pressed = [event.clientX, event.clientY]; });
    plot.addEventListener("click", event => this.click(event));
    this.legend = document.getElementById(plot.id + "-legend");
    this.order();
    this.show(...this.whole, false);
    linkedFigures.add(this);
    if (request !== null) this.open(request);
  }

  /* Show those that were asked for, then the slowest: of the run, or of those that are there in the window around one that was asked for. */
  order() {
    const wanted = row => !this.around || this.isIn(row, ...this.around), asked = this.asked.filter(wanted);
    const others = this.requests.slowest(this.by.value, this.many - asked.length, row => !asked.includes(row) && wanted(row));
    this.shown = [...asked, ...others];
    this.rowsShown = null;
    this.drawLegend();
    this.draw();
    this.moveAxes();
  }

  /* Show a request, and the time that it took. */
  open(request) {
    const row = this.requests.rowOf(request);
    this.note.textContent = row < 0 ? this.missing(request) : "";
    if (row < 0) return;
    this.asked = [row, ...this.asked.filter(one => one !== row)].slice(0, this.many);
    this.around = this.windowOf(row);
    this.order();
    this.show(...this.around);
  }

  missing(request) {
    const {count, arrived} = this.requests, all = arrived.toLocaleString("en");
    if (request >= arrived || count === arrived) return "There is no request " + request + "; there are " + all + ".";
    return "This page has the slowest " + count.toLocaleString("en") + " of " + all + " requests: clustersim dashboard RUN --request " + request + ".";
  }

  /* The time that a request took, and a little around it. */
  windowOf(row) {
    const start = this.requests.arrived_ns[row], end = this.requests.endOf(row), apart = Math.max(1, end - start) * 0.03;
    return [start - apart, end + apart];
  }

  isIn(row, from, to) { return this.requests.arrived_ns[row] < to && this.requests.endOf(row) >= from; }

  /* The whole run has the slowest of all again. */
  show(from, to, ...more) {
    super.show(from, to, ...more);
    if (this.around && this.view.from <= 0 && this.view.to >= this.end) this.list(null);
  }

  /* A window in which most rows have nothing lists the requests that are there. */
  follows(from, to) {
    const there = this.shown.filter(row => this.isIn(row, from * NS, to * NS));
    if (2 * there.length < this.shown.length) this.list([from * NS, to * NS]);
    super.follows(from, to);
  }

  list(around) {
    this.around = around;
    this.order();
  }

  click(event) {
    const {y, inside} = this.place(event), [x0, y0] = this.pressed || [0, 0];
    if (!inside || Math.abs(event.clientX - x0) + Math.abs(event.clientY - y0) > 4 || event.target.closest("button, select, input")) return;
    const row = this.shown[Math.round(this.view.top + y * (this.view.bottom - this.view.top))];
    if (row !== undefined) this.show(...this.windowOf(row));
  }

  phasesOf(row) {
    if (!this.phases.has(row)) this.phases.set(row, this.requests.phasesOf(row));
    return this.phases.get(row);
  }

  rowTicks({top, bottom}) {
    const values = [...this.shown.keys()].filter(at => at >= top && at <= bottom);
    const every = Math.ceil(values.length / Math.max(4, (this.plot.clientHeight - 80) / 13)), some = values.filter((_, at) => at % every === 0);
    return {values: some, texts: some.map(at => "request " + this.requests.request[this.shown[at]])};
  }

  recolour() {
    this.drawLegend();
    this.draw();
  }

  fill(raster) {
    const colours = Object.fromEntries(Object.entries(PHASES).map(([phase, [colour]]) => [phase, pixel(colour)]));
    this.shown.forEach((row, at) => {
      const wait = this.requests.waitOf(row);
      for (const {phase, start, end} of this.phasesOf(row))
        if (start < raster.view.to && end > raster.view.from)
          raster.bar(at, start, end, phase === "waiting" && wait ? pixel(wait[1]) : colours[phase]);
    });
    return {level: "requests"};
  }

  write() {}

  toldAt(at, instant) {
    const row = this.shown[at];
    if (row === undefined) return null;
    const {requests} = this, phases = this.phasesOf(row).filter(one => one.start <= instant && instant < one.end), phase = phases[phases.length - 1];
    return [
      "request " + requests.request[row], ...(phase ? [phaseLine(phase)] : []), ...this.waitLines(row),
      requests.prompt_tokens[row].toLocaleString("en") + " prompt tokens, " + requests.generated_tokens[row] + " of " + requests.output_tokens[row] + " generated",
      ...this.latencyLines(row), "arrived at " + instantText(requests.arrived_ns[row]),
    ];
  }

  waitLines(row) {
    const wait = this.requests.waitOf(row);
    return wait ? [wait[0] + ": " + timeText(this.requests.waited_ns[row])] : [];
  }

  /* The phases that the rows have, and what these requests waited for. */
  drawLegend() {
    const phases = new Set(this.shown.flatMap(row => this.phasesOf(row).map(one => one.phase)));
    const waits = new Map(this.shown.map(row => this.requests.waitOf(row)).filter(Boolean));
    if (waits.size) phases.delete("waiting");
    this.legend.replaceChildren(
      ...[...waits].map(([words, colour]) => legendEntry(colour, words)),
      ...Object.entries(PHASES).filter(([phase]) => phases.has(phase)).map(([, [colour, words]]) => legendEntry(colour, words)),
    );
  }

  latencyLines(row) {
    const {arrived_ns, first_token_ns, finished_ns, preemptions} = this.requests, found = [];
    if (first_token_ns[row] >= 0) found.push("first token after " + timeText(first_token_ns[row] - arrived_ns[row]));
    if (finished_ns[row] >= 0) found.push("last token after " + timeText(finished_ns[row] - arrived_ns[row]));
    if (preemptions[row]) found.push("lost its K/V " + preemptions[row] + " ×");
    return found;
  }
}

function phaseLine({phase, start, end, count, replica, step}) {
  const where = phase === "chunk" ? " of " + count.toLocaleString("en") + " tokens, in step " + step + " of replica " + replica : "";
  return PHASES[phase][1] + where + ": " + spanLine(start, end);
}

async function clustersimRequests(id, many, request) {
  linkedFigures.requests = new RequestRows(document.getElementById(id), await allRequests(), many, request);
}
