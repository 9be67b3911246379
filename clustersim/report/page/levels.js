/* What fills the lanes: operators where they can be told apart, else layers, steps, or the share of time that streams are
   busy. Each level writes rectangles into a raster; what is in view decides which level is drawn. */
"use strict";

const KIND_COLOURS = {prefill: "#D55E00", decode: "#0072B2", mixed: "#7A3E9D"};
const MOST_OPERATORS = 400000, MOST_STEPS = 20000;
/* Of a stage with more runs in view than MOST_RUNS the share of time busy is added up once, in so many parts of the run. */
const MOST_RUNS = 20000, PARTS = 65536;

/* A picture of so many pixels; times and rows are given in the units of a view {from, to, top, bottom}. */
class Raster {
  constructor(width, height, view) {
    Object.assign(this, {width, height, view});
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.pixelsPerNs = width / (view.to - view.from);
    this.rowHeight = height / (view.bottom - view.top);
  }

  x(instant) { return (instant - this.view.from) * this.pixelsPerNs; }

  /* First and last line of a row; rows of several pixels leave one between them. */
  lines(row) {
    const top = Math.round((row - 0.5 - this.view.top) * this.rowHeight), bottom = Math.round((row + 0.5 - this.view.top) * this.rowHeight);
    const apart = this.rowHeight >= 12 ? 2 : this.rowHeight >= 4 ? 1 : 0;
    return [Math.max(0, top), Math.min(this.height, Math.max(top + 1, bottom - apart))];
  }

  bar(row, start, end, colour) {
    const from = this.x(start), to = this.x(end), left = Math.max(0, Math.floor(from));
    const right = Math.min(this.width, Math.max(left + 1, Math.floor(to) - (to - from > 4 ? 1 : 0)));
    if (left < right) this.fill(left, right, ...this.lines(row), colour);
  }

  fill(left, right, top, bottom, colour) {
    for (let line = top; line < bottom; line++) this.pixels.fill(colour, line * this.width + left, line * this.width + right);
  }
}

/* A colour as a pixel of a raster, mixed with that of the page where its share is below 1. */
function pixel(colour, share = 1) {
  const hex = themed(colour), card = themed("#ffffff"), part = (one, at) => parseInt(one.slice(at, at + 2), 16);
  const [red, green, blue] = [1, 3, 5].map(at => Math.round(part(card, at) + (part(hex, at) - part(card, at)) * share));
  return (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
}

const HEAT = [[0, "#f1f4f7"], [0.02, "#d6e6f2"], [0.5, "#5aa2cf"], [1, "#08457e"]];

const heatGradient = () => "linear-gradient(90deg, " + HEAT.map(([, colour]) => themed(colour)).join(", ") + ")";

/* Pixels of 256 shares of time busy. */
function heatColours() {
  return Uint32Array.from({length: 256}, (_, at) => {
    const share = at / 255, above = Math.max(1, HEAT.findIndex(([limit]) => limit >= share));
    const [[low, from], [high, to]] = [HEAT[above - 1], HEAT[above]].map(([limit, colour]) => [limit, themed(colour)]), part = (share - low) / (high - low);
    const mixed = [1, 3, 5].map(i => Math.round(parseInt(from.slice(i, i + 2), 16) * (1 - part) + parseInt(to.slice(i, i + 2), 16) * part));
    return (255 << 24 | mixed[2] << 16 | mixed[1] << 8 | mixed[0]) >>> 0;
  });
}

/* Colours of all shares of a colour, at 64 steps. */
function shades(hex, least) {
  return Uint32Array.from({length: 65}, (_, at) => pixel(hex, least + (1 - least) * at / 64));
}

class Levels {
  constructor(run) {
    this.run = run;
    this.streams = run.words.streams.length;
    this.compute = run.words.streams.indexOf("compute");
    this.groups = new Map();
    this.recolour();
  }

  recolour() {
    const {colours, family_of_op} = this.run.words, familyPixels = colours.map(colour => pixel(colour));
    this.opPixels = family_of_op.map(family => familyPixels[family]);
    this.streamColours = this.coloursOfStreams();
    this.streamShades = this.streamColours.map(colour => shades(colour, 0.15));
    this.kindShades = Object.fromEntries(Object.entries(KIND_COLOURS).map(([kind, colour]) => [kind, shades(colour, 0.25)]));
    this.heat = heatColours();
  }

  coloursOfStreams() {
    const {streams, families, colours} = this.run.words, of = name => colours[families.indexOf(name)];
    const family = {compute: "matrix multiply", comm: "all-reduce, gather, scatter", host: "host", send: "send, receive", recv: "send, receive"};
    return streams.map(stream => of(family[stream] || "hand-over, swap"));
  }

  /* The stages whose ranks are in view. */
  placesIn(view) {
    const rows = this.run.rows, first = rows[Math.max(0, Math.ceil(view.top))], last = rows[Math.min(rows.length - 1, Math.floor(view.bottom))];
    return this.run.places.filter(place => {
      const program = this.run.programs[this.run.runs.program[place.from]];
      return first && last && place.base + program.ranks > first[0] && place.base <= last[0];
    });
  }

  /* How many passes of a stage are in view, those cut off in part, and how many operators these have: at most of a stage, and in all. */
  counted(view, places) {
    const {runs, programs} = this.run;
    let most = 0, all = 0, spans = 0, long = 0, layers = 0;
    for (const place of places) {
      const [first, last] = this.run.runsIn(place, view.from, view.to);
      let passes = 0, instances = 0, of_layers = 0;
      for (let run = first; run < last; run++) {
        const seen = Math.min(view.to, runs.end[run]) - Math.max(view.from, runs.start[run]);
        const some = runs.steps[run] * seen / Math.max(1, runs.end[run] - runs.start[run]), program = programs[runs.program[run]];
        passes += some;
        instances += some * program.longest;
        of_layers += some * program.layers;
        spans += some * program.spans;
      }
      all += passes;
      most = Math.max(most, passes);
      long = Math.max(long, instances);
      layers = Math.max(layers, of_layers);
    }
    return {most, all, spans, long, layers};
  }

  /* How many runs of stages are in view, and about how many passes these are. */
  runsIn(view, places) {
    const {step, steps} = this.run.runs, found = {runs: 0, passes: 0};
    for (const place of places) {
      const [first, last] = this.run.runsIn(place, view.from, view.to);
      found.runs += last - first;
      if (last > first) found.passes += step[last - 1] + steps[last - 1] - step[first];
    }
    return found;
  }

  levelOf(view, width, places) {
    const {runs, passes} = this.runsIn(view, places);
    if (runs > MOST_STEPS) return {level: "heat", passes, spans: 0};
    const {most, all, spans, long, layers} = this.counted(view, places);
    const level = () => {
      if (most > width / 4 || all > MOST_STEPS) return "heat";
      if (spans <= MOST_OPERATORS && (long < width || spans < 4000)) return "operators";
      return spans <= MOST_OPERATORS && layers * 3 < width ? "layers" : "steps";
    };
    return {level: level(), passes: all, spans};
  }

  draw(raster) {
    const {view} = raster, places = this.placesIn(view), found = this.levelOf(view, raster.width, places);
    this["draw_" + found.level](raster, places);
    if (found.level !== "heat") this.drawTransfers(raster);
    return found;
  }

  draw_operators(raster, places) {
    this.eachTold(raster, places, (pass, index, place) => {
      const {run, opPixels, streams} = this, {from, to} = raster.view;
      const program = run.programs[run.runs.program[pass]], {start, end} = run.nodeTimes(pass, index);
      for (let node = 0; node < program.nodes; node++) {
        if (start[node] >= to || end[node] <= from || start[node] === end[node]) continue;
        const colour = opPixels[program.ops[program.nodeSymbol[node]]], stream = program.instanceStream[program.nodeInstance[node]];
        for (let at = program.memberAt[node]; at < program.memberAt[node + 1]; at++)
          raster.bar(run.rowOf.get((place.base + program.members[at]) * streams + stream), start[node], end[node], colour);
      }
    });
  }

  draw_layers(raster, places) {
    const {run, streams} = this, {from, to} = raster.view;
    this.eachTold(raster, places, (pass, index, place) => {
      for (const {local, stream, layer, start, end, busy} of layersOf(run, pass, index))
        if (start < to && end > from)
          raster.bar(run.rowOf.get((place.base + local) * streams + stream), start, end,
            this.streamShades[stream][Math.round(64 * Math.min(1, busy / (end - start)) * (layer & 1 ? 0.75 : 1))]);
    });
  }

  /* Call visit(run, index, place) for passes in view whose operators the page has, and draw the others as steps. */
  eachTold(raster, places, visit) {
    this.run.eachPass(raster.view.from, raster.view.to, (pass, index, place) => {
      if (this.run.told(pass)) visit(pass, index, place); else this.stepBars(raster, pass, index, place);
    }, places);
  }

  draw_steps(raster, places) {
    const {from, to} = raster.view;
    this.run.eachPass(from, to, (pass, index, place) => this.stepBars(raster, pass, index, place), places);
  }

  /* Draw a pass as a bar on each stream that it uses. */
  stepBars(raster, pass, index, place) {
    const {run, streams} = this, number = run.runs.program[pass], start = run.startOf(pass, index), end = run.endOf(pass, index);
    const durations = run.durations[number].of(run.runs.row[pass], run.runs.first[pass] + index), {kind} = run.programs[number];
    for (const {keys, classes} of this.groupsOf(place)) {
      let busy = 0;
      for (const [cls, times] of classes[number] || []) busy += times * durations[cls];
      if (!busy) continue;
      const share = Math.round(64 * Math.min(1, busy / Math.max(1, end - start)));
      for (const key of keys) {
        const stream = key % streams, shade = (stream === this.compute ? this.kindShades[kind] : this.streamShades[stream])[share];
        raster.bar(run.rowOf.get(place.base * streams + key), start, end, shade);
      }
    }
  }

  draw_heat(raster, places) {
    const {view, width} = raster, bins = Math.min(width, 2048), binNs = (view.to - view.from) / bins;
    const seen = new Map();
    for (const place of places)
      for (const group of this.groupsOf(place)) {
        const busy = this.busyIn(place, group, view, bins);
        for (const key of group.keys) seen.set(this.run.rowOf.get(place.base * this.streams + key), busy);
      }
    this.eachTransfer(view, (row, start, end) => {
      if (!seen.has(row)) seen.set(row, new Float32Array(bins));
      addBusy(seen.get(row), (start - view.from) / binNs, (end - view.from) / binNs, 1);
    });
    for (let row = Math.max(0, Math.ceil(view.top)); row <= Math.min(this.run.rows.length - 1, view.bottom); row++)
      this.heatRow(raster, row, seen.get(row) || new Float32Array(bins));
  }

  /* The share of time in which the streams of a group of a stage are busy, in so many bins of a view. */
  busyIn(place, group, view, bins) {
    const {start, end} = this.run.runs, binNs = (view.to - view.from) / bins, busy = new Float32Array(bins);
    const [first, last] = this.run.runsIn(place, view.from, view.to);
    if (last - first > MOST_RUNS && bins < PARTS) return resampled(this.partsOf(place, group), this.run.end, view, bins);
    const shares = this.sharesOf(place, group);
    for (let run = first; run < last; run++)
      addBusy(busy, (start[run] - view.from) / binNs, (end[run] - view.from) / binNs, shares[run - place.from]);
    return busy;
  }

  /* Of all runs of a stage the share in which the streams of a group are busy, worked out once. */
  sharesOf(place, group) {
    if (!place.shares) place.shares = new Map();
    if (!place.shares.has(group)) place.shares.set(group, this.busyShares(place, this.takenBy(group)));
    return place.shares.get(group);
  }

  busyShares({from, to}, taken) {
    const {program, row, first, steps, start, end} = this.run.runs, shares = new Float64Array(to - from);
    for (let run = from; run < to; run++) {
      const one = taken[program[run]];
      if (!one) continue;
      const {fixed, until} = one, at = first[run];
      shares[run - from] = (steps[run] * fixed[row[run]] + (until ? until[at + steps[run]] - until[at] : 0)) / Math.max(1, end[run] - start[run]);
    }
    return shares;
  }

  /* What the streams of a group take in the passes of each program that uses them, by its number. */
  takenBy(group) {
    group.taken ||= this.run.durations.map((durations, number) => group.classes[number] && durations.taken(group.classes[number]));
    return group.taken;
  }

  partsOf(place, group) {
    if (!place.parts) place.parts = new Map();
    if (!place.parts.has(group)) place.parts.set(group, this.busyIn(place, group, {from: 0, to: this.run.end}, PARTS));
    return place.parts.get(group);
  }

  heatRow(raster, row, busy) {
    const [top, bottom] = raster.lines(row), wide = raster.width / busy.length, line = new Uint32Array(raster.width);
    for (let x = 0; x < raster.width; x++) line[x] = this.heat[Math.round(255 * Math.min(1, busy[Math.floor(x / wide)]))];
    for (let y = top; y < bottom; y++) raster.pixels.set(line, y * raster.width);
  }

  /* Streams of the ranks of a stage that are busy alike in all its programs: {keys: [local rank * streams + stream], classes: {program: …}}. */
  groupsOf(place) {
    const {runs, programs} = this.run;
    if (!place.programs) place.programs = [...new Set(runs.program.subarray(place.from, place.to))].sort((a, b) => a - b);
    const name = place.programs.join(" ");
    if (!this.groups.has(name)) this.groups.set(name, busyGroups(place.programs.map(number => [number, programs[number].busyClasses(this.streams)]), this.streams));
    return this.groups.get(name);
  }

  /* Call visit(row, start, end) for sends, receives and moves in view. */
  eachTransfer(view, visit) {
    const {run, streams} = this, {streams: names} = run.words, row = (rank, name) => run.rowOf.get(rank * streams + names.indexOf(name));
    run.eachSend(view.from, view.to, (send, local, start, end) => {
      const base = run.stageBase(run.sends.replica[send], run.sends.stage[send]) + local;
      visit(row(base, "send"), start, end);
      visit(row(base + run.sends.ranks[send], "recv"), start, end);
    });
    run.eachMove(view.from, view.to, move => {
      const {from_rank, to_rank, start_ns, end_ns} = run.moves;
      if (from_rank[move] >= 0) visit(row(from_rank[move], "kv_out"), start_ns[move], end_ns[move]);
      if (to_rank[move] >= 0) visit(row(to_rank[move], "kv_in"), start_ns[move], end_ns[move]);
    });
  }

  drawTransfers(raster) {
    this.eachTransfer(raster.view, (row, start, end) => {
      if (row >= raster.view.top - 0.5 && row <= raster.view.bottom + 0.5)
        raster.bar(row, start, end, pixel(this.streamColours[this.run.rows[row][1]]));
    });
  }
}

/* Add a share of each bin that [from, to) covers; both in bins. */
function addBusy(busy, from, to, share) {
  const last = Math.min(busy.length - 1, Math.floor(to));
  for (let bin = Math.max(0, Math.floor(from)); bin <= last; bin++)
    busy[bin] += share * (Math.min(to, bin + 1) - Math.max(from, bin));
}

/* Shares of parts of a run, as those of bins of a view. */
function resampled(parts, end, view, bins) {
  const busy = new Float32Array(bins), partNs = end / parts.length, binNs = (view.to - view.from) / bins;
  const last = Math.min(parts.length - 1, Math.floor(view.to / partNs));
  for (let part = Math.max(0, Math.floor(view.from / partNs)); part <= last; part++)
    addBusy(busy, (part * partNs - view.from) / binNs, ((part + 1) * partNs - view.from) / binNs, parts[part]);
  return busy;
}

function busyGroups(programs, streams) {
  const classes = new Map(), groups = new Map();
  for (const [number, found] of programs)
    for (const [key, some] of found) {
      if (!classes.has(key)) classes.set(key, {});
      classes.get(key)[number] = some;
    }
  for (const [key, some] of classes) {
    const name = key % streams + JSON.stringify(some);
    if (!groups.has(name)) groups.set(name, {keys: [], classes: some});
    groups.get(name).keys.push(key);
  }
  return [...groups.values()];
}

/* Of a pass: from when to when each layer lasts on each stream of each rank, and how long it is busy there. */
function layersOf(run, pass, index) {
  const program = run.programs[run.runs.program[pass]], {start, end} = run.nodeTimes(pass, index), found = new Map();
  for (let node = 0; node < program.nodes; node++) {
    const stream = program.instanceStream[program.nodeInstance[node]], layer = program.nodeLayer[node];
    for (let at = program.memberAt[node]; at < program.memberAt[node + 1]; at++) {
      const local = program.members[at], key = ((layer + 1) * program.ranks + local) * 64 + stream, one = found.get(key);
      if (!one) found.set(key, {local, stream, layer, start: start[node], end: end[node], busy: end[node] - start[node]});
      else {
        one.start = Math.min(one.start, start[node]);
        one.end = Math.max(one.end, end[node]);
        one.busy += end[node] - start[node];
      }
    }
  }
  return found.values();
}
