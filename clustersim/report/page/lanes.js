/* The lanes: what every stream of every device did in all of the run, unfolded anew at every zoom. */
"use strict";

const SAID = {
  heat: "share of its time in which each stream is busy; zoom in until steps, layers and operators appear",
  steps: "a bar is a step, stronger where the stream is busier in it",
  layers: "a bar is a layer on a stream, stronger where it is busier",
  operators: "a bar is an operator; point at one for its name, duration and what it waited for",
};

class Lanes extends TimeFigure {
  constructor(plot, run, words) {
    super(plot, run.end, run.rows.length);
    Object.assign(this, {run, words, levels: new Levels(run)});
    this.note = document.getElementById(plot.id + "-note");
    this.legend = document.getElementById(plot.id + "-legend");
    for (const button of document.querySelectorAll("[data-lanes='" + plot.id + "']"))
      button.addEventListener("click", () => this.show(...this.windowOf(button.dataset.view)));
    if (words.view) this.show(...words.view); else this.show(...this.whole, false);
    linkedFigures.add(this);
  }

  /* What a button shows: [from, to] in ns. */
  windowOf(name) {
    const {busiest} = this.words, {end} = this;
    if (name === "run" || !busiest) return this.whole;
    const [replica, step] = busiest, place = this.run.placeOf(this.run.stageBase(replica, 0)), run = this.run.runOfStep(place, step);
    const index = step - this.run.runs.step[run], start = this.run.startOf(run, index), stop = this.run.endOf(run, index);
    if (name === "second") return [Math.max(0, (start + stop) / 2 - NS / 2), Math.min(end, (start + stop) / 2 + NS / 2)];
    if (name === "step") return [start - (stop - start) * 0.05, stop + (stop - start) * 0.05];
    return this.layerOf(run, index);
  }

  layerOf(run, index) {
    const layers = [...layersOf(this.run, run, index)].filter(one => one.layer >= 0), middle = layers[layers.length >> 1];
    const mine = layers.filter(one => one.layer === (middle ? middle.layer : -1));
    return mine.length ? [Math.min(...mine.map(one => one.start)), Math.max(...mine.map(one => one.end))] : this.whole;
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

  recolour() {
    this.levels.recolour();
    delete this.legend.dataset.level;
    this.draw();
  }

  fill(raster) { return this.levels.draw(raster); }

  write(context, raster, drawn, scale) {
    if (drawn.level !== "heat") labels(this, context, raster, drawn.level, scale);
    this.tell(drawn);
  }

  toldAt(row, instant) { return toldAt(this, row, instant); }

  tell({level, passes, spans}) {
    const many = Math.round(level === "operators" || level === "layers" ? spans : passes).toLocaleString("en");
    this.note.textContent = timeText(Math.round(this.view.to - this.view.from)) + " in view, about " + many +
      (level === "operators" || level === "layers" ? " operators: " : " passes of stages: ") + SAID[level] + ".";
    if (this.legend.dataset.level !== level) drawLegend(this.legend, level, this.run.words);
  }
}

async function clustersimLanes(id, words) {
  linkedFigures.lanes = new Lanes(document.getElementById(id), await foldedRun(), words);
}
