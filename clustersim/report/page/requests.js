/* What became of each request: phases that follow from what was decided about it and from the chunks of its prompt. */
"use strict";

const PHASES = {
  waiting: ["#9AA5B1", "waits to be admitted"], prompt: ["#C3DCEB", "prompt, between its chunks"], chunk: ["#004D80", "chunk of the prompt"],
  hand_over: ["#7E57C2", "handed over"], decode: ["#A3AD4A", "decodes"], preempted: ["#CC79A7", "lost its K/V, waits"],
  swapped: ["#7A5230", "swapped to the host"],
};
const ENDS = new Set(["finished", "cancelled", "lost", "rejected"]);

class Requests {
  static async read(data, run) {
    const names = ["requests", "decided", "chunks"], [columns, facts, chunks] = await Promise.all(names.map(name => unpacked(data.sections[name])));
    return new Requests(columns, facts, chunks, data, run);
  }

  constructor(columns, facts, chunks, data, run) {
    const {arrived_ns} = columns, instant = after => {
      const found = new Float64Array(after.length);
      for (let row = 0; row < after.length; row++) found[row] = after[row] < 0 ? -1 : arrived_ns[row] + after[row];
      return found;
    };
    Object.assign(this, {first_token_ns: instant(columns.first_token_after), finished_ns: instant(columns.finished_after)});
    Object.defineProperties(this, Object.getOwnPropertyDescriptors(columns));
    Object.assign(this, {facts, chunks, kinds: data.facts, arrived: data.arrived, waits: data.waits, run, count: columns.request.length});
  }

  rowOf(request) {
    const row = firstAbove(this.request, request) - 1;
    return row >= 0 && this.request[row] === request ? row : -1;
  }

  /* A latency of each request, ns, or how often it was preempted; -1 where there is none. */
  measure(name) {
    const {arrived_ns, first_token_ns, finished_ns, generated_tokens, preemptions} = this, found = new Float64Array(this.count).fill(-1);
    for (let row = 0; row < this.count; row++) {
      const first = first_token_ns[row], last = finished_ns[row];
      if (name === "preemptions") found[row] = preemptions[row];
      else if (name === "ttft" && first >= 0) found[row] = first - arrived_ns[row];
      else if (name === "e2e") found[row] = (last >= 0 ? last : this.run.end) - arrived_ns[row];
      else if (name === "tpot" && last >= 0 && generated_tokens[row] > 1) found[row] = (last - first) / (generated_tokens[row] - 1);
    }
    return found;
  }

  /* So many rows of those that are wanted, those with the largest measure first; of equals the one that came first. */
  slowest(name, many, wanted) {
    const measure = this.measure(name), found = [];
    for (let row = 0; row < this.count; row++) {
      if (found.length === many && measure[row] <= measure[found[many - 1]] || !wanted(row)) continue;
      const at = found.findIndex(one => measure[one] < measure[row]);
      found.splice(at < 0 ? found.length : at, 0, row);
      if (found.length > many) found.pop();
    }
    return found;
  }

  /* The rows of a table, in order of requests, that are of one. */
  *of(table, request) {
    for (let at = firstAbove(table.request, request - 1); at < table.request.length && table.request[at] === request; at++) yield at;
  }

  /* Start and end of a step of a replica, over all of its stages. */
  stepTimes(replica, step) {
    const {run} = this, pool = run.poolOf(replica), first = run.placeOf(run.stageBase(replica, 0)), last = run.placeOf(run.stageBase(replica, pool.stages - 1));
    const begins = run.runOfStep(first, step), ends = run.runOfStep(last, step);
    return begins < 0 || ends < 0 ? null : [run.startOf(begins, step - run.runs.step[begins]), run.endOf(ends, step - run.runs.step[ends])];
  }

  /* The chunks of a request, in order of time: {start, end, count, sampled, replica, step}. */
  chunksOf(row) {
    const {replica, step, count, sampled} = this.chunks, found = [];
    for (const at of this.of(this.chunks, this.request[row])) {
      const times = this.stepTimes(replica[at], step[at]);
      if (times) found.push({start: times[0], end: times[1], count: count[at], sampled: sampled[at], replica: replica[at], step: step[at]});
    }
    return found.sort((a, b) => a.start - b.start);
  }

  /* What happened to a request: facts, the ends of its prompt, and its last token, in order of time: [instant, what]. */
  eventsOf(row, chunks) {
    const {time_ns, kind} = this.facts, events = this.finished_ns[row] < 0 ? [] : [[this.finished_ns[row], "finished"]];
    for (const at of this.of(this.facts, this.request[row])) events.push([time_ns[at], this.kinds[kind[at]]]);
    for (const chunk of chunks) if (chunk.sampled) events.push([chunk.end, "prompted"]);
    const late = word => word === "prompted" ? 0 : word === "finished" ? 2 : 1;
    return events.map((event, at) => [...event, at]).sort((a, b) => a[0] - b[0] || late(a[1]) - late(b[1]) || a[2] - b[2]);
  }

  /* The phases of a request, in order of time: {phase, start, end, told}. */
  phasesOf(row) {
    const chunks = this.chunksOf(row), events = this.eventsOf(row, chunks), found = [];
    let phase = "waiting", since = this.arrived_ns[row];
    const turn = (next, instant) => {
      if (phase && instant > since) found.push({phase, start: since, end: instant});
      [phase, since] = [next, instant];
    };
    events.forEach(([instant, what], at) => {
      if (ENDS.has(what)) turn(null, instant);
      else if (what === "admitted" && (phase === "waiting" || phase === "preempted")) turn("prompt", instant);
      else if (what === "prompted") turn(handedOver(events, at) ? "hand_over" : "decode", instant);
      else if (what === "received" || what === "swapped_in") turn("decode", instant);
      else if (what === "preempted") turn("preempted", instant);
      else if (what === "swapped_out") turn("swapped", instant);
    });
    if (phase) turn(null, this.run.end);
    return [...found, ...chunks.map(chunk => ({phase: "chunk", ...chunk}))];
  }

  /* What a request waited for longest before it was admitted: [words, colour]; null where that is not known. */
  waitOf(row) { return this.waited_for && this.waited_for[row] >= 0 ? this.waits[this.waited_for[row]] : null; }

  endOf(row) { return this.finished_ns[row] >= 0 ? this.finished_ns[row] : Math.max(this.arrived_ns[row], ...this.phasesOf(row).map(one => one.end)); }
}

/* Whether what comes after an event is a hand-over, and not that the sequence loses what it has or ends. */
function handedOver(events, at) {
  const next = events.slice(at + 1).find(([, what]) => what === "handed_over" || what === "preempted" || what === "swapped_out" || ENDS.has(what));
  return Boolean(next) && next[1] === "handed_over";
}

/* The requests of this page, read once. */
async function allRequests() {
  const run = await foldedRun();
  return allRequests.found ||= Requests.read(runData(), run);
}
