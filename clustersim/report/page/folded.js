/* The folded timeline: programs, runs of passes, sends and moves, from which every operator of a window is unfolded.
   Times are nanoseconds since the start of the run; numbers below 2^53 are exact. */
"use strict";

/* Runs whose operators the page lacks are told in units of this; see report/folded/coarse.py. */
const COARSE_NS = 16384;

/* One template of passes: instances (what all ranks that do alike run at once), and nodes on ranks. */
class Program {
  constructor(words, columns, place) {
    Object.assign(this, words);
    const column = name => columns[name + " " + place];
    this.instanceClass = column("instance_class");
    this.instanceStream = column("instance_stream");
    this.instanceS = column("instance_s");
    this.sAt = offsets(column("instance_s_count"));
    this.after = column("after");
    this.afterAt = offsets(column("after_count"));
    this.nodeInstance = column("node_instance");
    this.nodeSymbol = column("node_symbol");
    this.nodeLayer = column("node_layer");
    this.members = column("members");
    this.memberAt = offsets(column("members_count"));
    this.nodeHalf = column("node_half");
    this.fixedClasses = [...Array(words.classes).keys()].filter(cls => !words.varying.includes(cls));
    this.instances = this.instanceClass.length;
    this.nodes = this.nodeInstance.length;
    this.spans = this.members.length;
    this.layers = new Set(this.nodeLayer).size;
  }

  /* The most operators that any stream of a rank has. */
  get longest() {
    const longest = Math.max(...this.busyClasses(64).map(([, classes]) => classes.reduce((sum, [, times]) => sum + times, 0)));
    Object.defineProperty(this, "longest", {value: longest});
    return longest;
  }

  /* How many instances each class of durations has. */
  get counts() {
    const counts = new Float64Array(this.classes);
    for (const cls of this.instanceClass) counts[cls]++;
    Object.defineProperty(this, "counts", {value: counts});
    return counts;
  }

  /* Whether a node is on a local rank. */
  has(node, local) {
    for (let at = this.memberAt[node]; at < this.memberAt[node + 1]; at++) if (this.members[at] === local) return true;
    return false;
  }

  /* A node of an instance: one that shares a rank with another node, or else its first. */
  nodeOf(instance, other) {
    const first = this.nodeInstance.indexOf(instance);
    for (let node = first; node < this.nodes; node++)
      if (this.nodeInstance[node] === instance && this.has(node, this.members[this.memberAt[other]])) return node;
    return first;
  }

  /* What each instance waits for: what it needs, and what its streams run before it. */
  get waits() {
    const last = new Map(), waits = [];
    for (let i = 0; i < this.instances; i++) {
      const before = new Set();
      for (let at = this.afterAt[i]; at < this.afterAt[i + 1]; at++) before.add(i - this.after[at]);
      for (let at = this.sAt[i]; at < this.sAt[i + 1]; at++) {
        const key = this.instanceS[at] * 64 + this.instanceStream[i];
        if (last.has(key)) before.add(last.get(key));
        last.set(key, i);
      }
      waits.push(Int32Array.from(before));
    }
    Object.defineProperty(this, "waits", {value: waits});
    return waits;
  }

  /* When each instance ends, from the start of the pass. */
  ends(durations) {
    const ends = new Float64Array(this.instances);
    let end = 0;
    for (let i = 0; i < this.instances; i++) {
      if (!this.chain) {
        end = 0;
        for (const before of this.waits[i]) if (ends[before] > end) end = ends[before];
      }
      ends[i] = end += durations[this.instanceClass[i]];
    }
    return ends;
  }

  /* Of each (rank, stream) with operators the classes of these and how often each occurs: [rank * streams + stream, [[class, times], …]]. */
  busyClasses(streams) {
    const found = new Map();
    for (let node = 0; node < this.nodes; node++) {
      const instance = this.nodeInstance[node], cls = this.instanceClass[instance];
      for (let at = this.memberAt[node]; at < this.memberAt[node + 1]; at++) {
        const key = this.members[at] * streams + this.instanceStream[instance];
        if (!found.has(key)) found.set(key, new Map());
        const classes = found.get(key);
        classes.set(cls, (classes.get(cls) || 0) + 1);
      }
    }
    return [...found].map(([key, classes]) => [key, [...classes]]);
  }
}

/* What the passes of one program take, in order of replica, stage and step. */
class Durations {
  constructor(program, columns, place) {
    this.program = program;
    this.fixed = columns["fixed " + place];
    this.varying = columns["varying " + place];
    const lengths = columns["lengths " + place], width = program.varying.length;
    this.rows = program.fixedClasses.length ? this.fixed.length / program.fixedClasses.length : 1;
    this.passes = program.chain ? (width ? this.varying.length / width : 0) : lengths.length;
    const {fixed, until} = this.taken(program.chain ? [...program.counts.entries()] : []);
    this.base = fixed;
    this.until = until || new Float64Array(this.passes + 1);   /* what varies of all passes before each */
    if (!program.chain) lengths.forEach((length, pass) => { this.until[pass + 1] = this.until[pass] + length; });
  }

  /* What operators of [[class, times], …] take in a pass: what is fixed, by row, and what varies, over all passes before each; null where nothing does. */
  taken(classes) {
    const {program: {fixedClasses}, rows, passes, varying} = this, fixed = new Float64Array(rows), varies = [];
    for (const [cls, times] of classes) {
      const at = this.program.varying.indexOf(cls), from = fixedClasses.indexOf(cls) * rows;
      if (at >= 0) varies.push({from: at * passes, times});
      else for (let row = 0; row < rows; row++) fixed[row] += times * this.fixed[from + row];
    }
    const until = varies.length ? new Float64Array(passes + 1) : null;
    for (let pass = 0, sum = 0; pass < passes && until; pass++) {
      for (let at = 0; at < varies.length; at++) sum += varies[at].times * varying[varies[at].from + pass];
      until[pass + 1] = sum;
    }
    return {fixed, until};
  }

  /* The durations by class of a pass. */
  of(row, pass) {
    const found = new Float64Array(this.program.classes), {fixedClasses, varying} = this.program;
    for (let at = 0; at < fixedClasses.length; at++) found[fixedClasses[at]] = this.fixed[at * this.rows + row];
    for (let at = 0; at < varying.length; at++) found[varying[at]] = this.varying[at * this.passes + pass];
    return found;
  }
}

/* What [start, longest, number] say, in order of start. */
function inOrder(listed) {
  listed.sort((a, b) => a[0] - b[0] || a[2] - b[2]);
  return {
    starts: Float64Array.from(listed, one => one[0]), order: Int32Array.from(listed, one => one[2]),
    longest: listed.reduce((most, one) => Math.max(most, one[1]), 0),
  };
}

/* Call visit(number) for what starts before `to`, and not so long before `from` that none of them reaches it. */
function eachIn({starts, order, longest}, from, to, visit) {
  for (let at = firstAbove(starts, from - longest - 1); at < starts.length && starts[at] < to; at++) visit(order[at]);
}

class FoldedRun {
  static SECTIONS = ["programs", "durations", "runs", "stretched", "sends", "moves", "steps"];

  static async read(data) {
    const names = FoldedRun.SECTIONS, parts = await Promise.all(names.map(name => unpacked(data.sections[name])));
    return new FoldedRun(data, Object.fromEntries(names.map((name, at) => [name, parts[at]])));
  }

  constructor(data, sections) {
    Object.assign(this, {words: data, end: data.end, rows: data.rows, sends: sections.sends, moves: sections.moves, steps: sections.steps});
    this.programs = data.programs.map((words, place) => new Program(words, sections.programs, place));
    this.durations = this.programs.map((program, place) => new Durations(program, sections.durations, place));
    this.stretched = sections.stretched;
    this.shiftAt = offsets(this.stretched.shift_count);
    this.grownAt = offsets(this.stretched.grown_count);
    this.runs = {...sections.runs};   /* all of it is read at once, and often */
    this.places = this.placed();
    this.rowOf = new Map(data.rows.map(([rank, stream], row) => [rank * data.streams.length + stream, row]));
    this.sendPlaces = this.placedSends();
    this.movePlace = this.placedMoves();
  }

  poolOf(replica) {
    return this.words.pools.findLast(pool => replica >= pool.first_replica);
  }

  stageBase(replica, stage) {
    const pool = this.poolOf(replica);
    return pool.first_rank + ((replica - pool.first_replica) * pool.stages + stage) * pool.sp * pool.tp;
  }

  placeOfRank(rank) {
    const pool = this.words.pools.findLast(one => rank >= one.first_rank);
    const number = Math.floor((rank - pool.first_rank) / (pool.sp * pool.tp));
    return [pool.first_replica + Math.floor(number / pool.stages), number % pool.stages];
  }

  /* Give runs their first step (which travels as the steps between), start, end, position among the passes of their program, and number among stretched ones; return the
     stages of replicas that have any: {replica, stage, base, from, to}, in order. */
  placed() {
    const runs = this.runs, count = runs.replica.length, places = [], passes = this.programs.map(() => 0), between = runs.step;
    runs.step = new Float64Array(count);
    runs.start = new Float64Array(count);
    runs.end = new Float64Array(count);
    runs.first = new Int32Array(count);
    runs.odd = new Int32Array(count);
    for (let run = 0, end = 0, next = 0, odd = 0; run < count; run++) {
      const replica = runs.replica[run], stage = runs.stage[run], last = places[places.length - 1];
      if (!last || last.replica !== replica || last.stage !== stage) {
        places.push({replica, stage, base: this.stageBase(replica, stage), from: run, to: run});
        end = next = 0;
      }
      runs.step[run] = next + between[run];
      next = runs.step[run] + runs.steps[run];
      const program = runs.program[run];
      runs.first[run] = passes[program];
      passes[program] += runs.steps[run];
      runs.start[run] = end + runs.gap[run];
      runs.odd[run] = runs.irregular[run] ? odd++ : -1;
      end = runs.end[run] = this.told(run)
        ? this.startOf(run, runs.steps[run]) + (runs.irregular[run] ? this.stretched.longer[odd - 1] : 0)
        : runs.start[run] + runs.took[run] * COARSE_NS;
      places[places.length - 1].to = run + 1;
    }
    return places;
  }

  /* The stage that a rank is one of; of ranks in lockstep, that of the first of their replicas. */
  placeOf(rank) {
    return this.places.findLast(place => place.base <= rank && rank < place.base + this.programs[this.runs.program[place.from]].ranks);
  }

  /* The run of a stage that has a step; -1 for none. */
  runOfStep(place, step) {
    const run = firstAbove(this.runs.step, step, place.from, place.to) - 1;
    return run >= place.from && step < this.runs.step[run] + this.runs.steps[run] ? run : -1;
  }

  /* The row of what a step of a replica carried; -1 for none. */
  stepRow(replica, step) {
    const {replica: replicas, step: steps} = this.steps, low = firstAbove(replicas, replica - 1), high = firstAbove(replicas, replica);
    const row = firstAbove(steps, step, low, high) - 1;
    return row >= low ? row : -1;
  }

  /* When a pass of a run starts; the one after the last one starts when the run ends, where nothing stretched it. */
  startOf(run, index) {
    if (!this.told(run)) return this.evenly(run, index);
    const {start, program, first, row} = this.runs, found = this.durations[program[run]], from = first[run];
    return start[run] + index * found.base[row[run]] + found.until[from + index] - found.until[from];
  }

  /* Where the page lacks the durations of passes, they are as long as each other. */
  evenly(run, index) {
    const {start, end, steps} = this.runs;
    return start[run] + Math.round((end[run] - start[run]) * index / steps[run]);
  }

  endOf(run, index) {
    return index + 1 < this.runs.steps[run] ? this.startOf(run, index + 1) : this.runs.end[run];
  }

  /* The first pass of a run that ends after an instant. */
  passAt(run, instant) {
    let low = 0, high = this.runs.steps[run];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.endOf(run, middle) > instant) high = middle; else low = middle + 1;
    }
    return low;
  }

  /* The runs of a stage that overlap [from, to): their first, and the one after the last. */
  runsIn(place, from, to) {
    const first = firstAbove(this.runs.end, from, place.from, place.to);
    return [first, Math.max(first, firstAbove(this.runs.start, to - 1, place.from, place.to))];
  }

  /* Whether the page has the operators of a run's passes. */
  told(run) { return !this.runs.told || this.runs.told[run] === 1; }

  /* Start and end of every node of a pass. */
  nodeTimes(run, index) {
    const program = this.programs[this.runs.program[run]], begin = this.startOf(run, index);
    const durations = this.durations[this.runs.program[run]].of(this.runs.row[run], this.runs.first[run] + index);
    const ends = program.ends(durations), start = new Float64Array(program.nodes), end = new Float64Array(program.nodes);
    for (let node = 0; node < program.nodes; node++) {
      const instance = program.nodeInstance[node];
      end[node] = begin + ends[instance];
      start[node] = end[node] - durations[program.instanceClass[instance]];
    }
    if (this.runs.odd[run] >= 0) this.stretch(this.runs.odd[run], start, end);
    return {start, end};
  }

  stretch(odd, start, end) {
    const {shift_node, shift_ns, grown_node, grown_ns} = this.stretched;
    for (let at = this.shiftAt[odd], node = 0, shift = 0; node < start.length; node++) {
      if (at < this.shiftAt[odd + 1] && shift_node[at] === node) shift += shift_ns[at++];
      start[node] += shift;
      end[node] += shift;
    }
    for (let at = this.grownAt[odd]; at < this.grownAt[odd + 1]; at++) end[grown_node[at]] += grown_ns[at];
  }

  /* Call visit(run, index, place) for each pass that overlaps [from, to) on some stages. */
  eachPass(from, to, visit, places = this.places) {
    for (const place of places) {
      const [first, last] = this.runsIn(place, from, to);
      for (let run = first; run < last; run++) {
        const steps = this.runs.steps[run];
        for (let index = this.passAt(run, from); index < steps && this.startOf(run, index) < to; index++) visit(run, index, place);
      }
    }
  }

  /* Sends by the stage that they leave, in order of their start: {order, starts, longest}. */
  placedSends() {
    const {replica, stage, ranks, start, length, odd, odd_start, odd_length} = this.sends, places = new Map();
    const rankAt = offsets(ranks), starts = new Float64Array(rankAt[ranks.length]), lengths = new Float64Array(starts.length);
    for (let send = 0, next = 0; send < ranks.length; send++) {
      let first = Infinity, longest = 0;
      for (let at = rankAt[send], begin = start[send], takes = length[send]; at < rankAt[send + 1]; at++) {
        if (next < odd.length && odd[next] === at) { begin += odd_start[next]; takes += odd_length[next++]; }
        starts[at] = begin;
        lengths[at] = takes;
        if (takes) first = Math.min(first, begin);
        longest = Math.max(longest, takes);
      }
      const key = replica[send] * 4096 + stage[send];
      if (!places.has(key)) places.set(key, []);
      if (longest) places.get(key).push([first, longest, send]);
    }
    Object.assign(this.sends, {rankAt, starts, lengths});
    return [...places.values()].map(inOrder);
  }

  /* Call visit(send, local rank, start, end) for each send that overlaps [from, to). */
  eachSend(from, to, visit) {
    const {rankAt, starts, lengths} = this.sends;
    for (const place of this.sendPlaces)
      eachIn(place, from, to, send => {
        for (let at = rankAt[send]; at < rankAt[send + 1]; at++)
          if (lengths[at] > 0 && starts[at] < to && starts[at] + lengths[at] > from)
            visit(send, at - rankAt[send], starts[at], starts[at] + lengths[at]);
      });
  }

  placedMoves() {
    const {start_ns, end_ns} = this.moves;
    return inOrder(Array.from(start_ns, (start, move) => [start, end_ns[move] - start, move]));
  }

  /* Call visit(move) for each move of K/V entries that overlaps [from, to). */
  eachMove(from, to, visit) {
    eachIn(this.movePlace, from, to, move => { if (this.moves.end_ns[move] > from) visit(move); });
  }

  /* The replica that a rank of a pass is of: those in lockstep share their passes. */
  replicaOf(place, local) {
    const pool = this.poolOf(place.replica);
    return place.replica + (pool.lockstep > 1 ? Math.floor(local / (pool.sp * pool.tp)) : 0);
  }

  /* Every span that overlaps [from, to): [start, end, rank, stream, name, op, layer, step, replica, stage, half]. */
  unfold(from, to) {
    const spans = [], overlaps = (start, end) => start < to && end > from;
    this.eachPass(from, to, (run, index, place) => {
      const program = this.programs[this.runs.program[run]], {start, end} = this.nodeTimes(run, index);
      for (let node = 0; node < program.nodes; node++)
        if (overlaps(start[node], end[node]))
          for (let at = program.memberAt[node]; at < program.memberAt[node + 1]; at++) {
            const local = program.members[at], symbol = program.nodeSymbol[node];
            spans.push([
              start[node], end[node], place.base + local, program.instanceStream[program.nodeInstance[node]],
              program.names[symbol], program.ops[symbol], program.nodeLayer[node], this.runs.step[run] + index,
              this.replicaOf(place, local), place.stage, program.nodeHalf.length ? program.nodeHalf[node] : 0,
            ]);
          }
    });
    this.eachSend(from, to, (send, local, start, end) => spans.push(...this.sendSpans(send, local, start, end)));
    this.eachMove(from, to, move => spans.push(...this.moveSpans(move)));
    return spans;
  }

  sendSpans(send, local, start, end) {
    const {replica, stage, step, ranks} = this.sends, {names, ops, streams} = this.words;
    return ["send", "recv"].map((word, side) => [
      start, end, this.stageBase(replica[send], stage[send]) + side * ranks[send] + local, streams.indexOf(word),
      names.indexOf(word), ops.indexOf(word), -1, step[send], replica[send], stage[send] + side, 0,
    ]);
  }

  moveSpans(move) {
    const {from_rank, to_rank, layer, start_ns, end_ns} = this.moves, {streams, moves_named} = this.words;
    const name = moves_named[from_rank[move] < 0 || to_rank[move] < 0 ? 1 : 0], op = this.words.ops.indexOf(this.words.names[name]);
    return [["kv_out", from_rank[move]], ["kv_in", to_rank[move]]].filter(([, rank]) => rank >= 0).map(([stream, rank]) => {
      const [replica, stage] = this.placeOfRank(rank);
      return [start_ns[move], end_ns[move], rank, streams.indexOf(stream), name, op, layer[move], -1, replica, stage, 0];
    });
  }
}

/* The folded run of this page, read once. */
function foldedRun() {
  return foldedRun.found ||= FoldedRun.read(runData());
}

function runData() {
  return runData.found ||= JSON.parse(document.getElementById("run-data").textContent);
}
