/* What the lanes say of themselves: labels in bars, the legend, and what is under the pointer. */
"use strict";

const escaped = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

/* Write names into bars that have room for them. */
function labels(lanes, context, raster, level, scale) {
  const letters = Math.min(11, raster.rowHeight / scale - 1);
  if (letters < 8) return;
  context.font = letters * scale + "px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = "white";
  const write = (row, start, end, text) => {
    const from = Math.max(0, raster.x(start)), to = Math.min(raster.width, raster.x(end)), [top, bottom] = raster.lines(row);
    if (to - from > (0.57 * letters * text.length + 8) * scale && bottom > 0) context.fillText(text, from + 4 * scale, (top + bottom) / 2);
  };
  const {run} = lanes, {from, to} = raster.view, streams = run.words.streams;
  run.eachPass(from, to, (pass, index, place) => {
    const program = run.programs[run.runs.program[pass]], row = (local, stream) => run.rowOf.get((place.base + local) * streams.length + stream);
    if (level === "steps" || !run.told(pass)) return stepLabel(run, pass, index, program, streams, row, write);
    if (level === "layers") return layerLabels(run, pass, index, row, write);
    const {start, end} = run.nodeTimes(pass, index);
    for (let node = 0; node < program.nodes; node++) {
      if (start[node] >= to || end[node] <= from || raster.x(end[node]) - raster.x(start[node]) < 20 * scale) continue;
      for (let at = program.memberAt[node]; at < program.memberAt[node + 1]; at++)
        write(row(program.members[at], program.instanceStream[program.nodeInstance[node]]), start[node], end[node], nodeName(run, program, node));
    }
  }, lanes.levels.placesIn(raster.view));
}

function stepLabel(run, pass, index, program, streams, row, write) {
  const text = "step " + (run.runs.step[pass] + index) + " · " + program.kind, compute = streams.indexOf("compute");
  for (let local = 0; local < program.ranks; local++) write(row(local, compute), run.startOf(pass, index), run.endOf(pass, index), text);
}

function layerLabels(run, pass, index, row, write) {
  for (const {local, stream, layer, start, end} of layersOf(run, pass, index))
    if (layer >= 0) write(row(local, stream), start, end, "layer " + layer);
}

function nodeName(run, program, node) {
  const half = program.nodeHalf.length ? program.nodeHalf[node] : 0;
  return run.words.names[program.names[program.nodeSymbol[node]]] + (half ? ", half " + half : "");
}

function legendEntry(colour, text) {
  const found = document.createElement("span"), mark = document.createElement("i");
  mark.style.background = themed(colour);
  found.append(mark, text);
  return found;
}

function drawLegend(legend, level, words) {
  const entry = legendEntry;
  const used = new Set(words.family_of_op), entries = {
    heat: () => [entry(heatGradient(), "idle to busy")],
    steps: () => Object.entries(KIND_COLOURS).map(([kind, colour]) => entry(colour, kind)),
    layers: () => [entry(words.colours[0], "compute"), entry(words.colours[3], "communication")],
    operators: () => words.families.map((family, at) => [family, at]).filter(([, at]) => used.has(at)).map(([family, at]) => entry(words.colours[at], family)),
  }[level]();
  legend.replaceChildren(...entries);
  legend.dataset.level = level;
}

/* Lines about what is at an instant on a row; null where there is nothing. */
function toldAt(lanes, row, instant) {
  const {run} = lanes, [rank, stream] = run.rows[row], slack = 2 * (lanes.view.to - lanes.view.from) / Math.max(1, lanes.area.w);
  const name = run.words.streams[stream], where = lanes.rowName(row);
  if (["send", "recv", "kv_out", "kv_in"].includes(name)) return transferAt(run, rank, name, instant, slack, where);
  const place = run.placeOf(rank);
  const at = place && passNear(run, place, instant, slack);
  if (!at) return null;
  const level = lanes.drawn && lanes.drawn.level;
  if (level === "heat") return [where, "at " + instantText(Math.round(instant)), stepLine(run, ...at)];
  const step = [stepLine(run, ...at), where, spanLine(run.startOf(...at), run.endOf(...at)), ...carried(run, place, at)];
  if (!run.told(at[0])) return [...step, "this page lacks its operators: clustersim dashboard RUN --at '" + instantText(run.startOf(...at)) + "'"];
  if (level === "steps") return step;
  return operatorAt(run, place, at, rank - place.base, stream, instant, slack, where) || [where, "idle in " + stepLine(run, ...at)];
}

const spanLine = (start, end) => timeText(end - start) + ", from " + instantText(start);

function stepLine(run, pass, index) {
  return "step " + (run.runs.step[pass] + index) + " of replica " + run.runs.replica[pass] + ": " + run.programs[run.runs.program[pass]].kind;
}

/* What a step carried, where the page has that. */
function carried(run, place, [pass, index]) {
  const {windows} = run.words, inside = ([from, to]) => run.startOf(pass, index) < to && run.endOf(pass, index) > from;
  if (windows && !windows.some(inside)) return [];
  const row = run.stepRow(place.replica, run.runs.step[pass] + index);
  if (row < 0) return [];
  const {batch_requests, prefill_tokens, decode_tokens} = run.steps;
  return [batch_requests[row] + (batch_requests[row] === 1 ? " request; " : " requests; ") + prefill_tokens[row].toLocaleString("en") + " prompt tokens, " + decode_tokens[row] + " decoding"];
}

/* The pass of a stage at an instant, or within some ns of it: [run, index]. */
function passNear(run, place, instant, slack) {
  const [first, last] = run.runsIn(place, instant - slack, instant + slack + 1);
  for (let pass = first; pass < last; pass++) {
    const index = run.passAt(pass, instant - slack);
    if (index < run.runs.steps[pass] && run.startOf(pass, index) <= instant + slack) return [pass, index];
  }
  return null;
}

function operatorAt(run, place, [pass, index], local, stream, instant, slack, where) {
  const program = run.programs[run.runs.program[pass]], times = run.nodeTimes(pass, index);
  let found = -1, nearest = slack;
  for (let node = 0; node < program.nodes; node++) {
    if (program.instanceStream[program.nodeInstance[node]] !== stream || !program.has(node, local)) continue;
    const away = Math.max(times.start[node] - instant, instant - times.end[node], 0);
    if (away < nearest || (away === 0 && times.end[node] > times.start[node])) { found = node; nearest = away; }
  }
  if (found < 0) return null;
  const symbol = program.nodeSymbol[found], layer = program.nodeLayer[found];
  return [
    nodeName(run, program, found) + " (" + run.words.ops[program.ops[symbol]] + ")" + shapeText(program, found),
    (layer >= 0 ? "layer " + layer + " · " : "") + stepLine(run, pass, index), where, spanLine(times.start[found], times.end[found]),
    waitLine(run, program, times, found, run.startOf(pass, index)), ...carried(run, place, [pass, index]),
  ];
}

/* The shape of an operator on one rank, or over how many ranks it goes. */
function shapeText(program, node) {
  const shape = program.shapes[program.nodeSymbol[node]], ranks = program.memberAt[node + 1] - program.memberAt[node];
  return (shape ? ": " + shape : "") + (ranks > 1 ? " over " + ranks + " ranks" : "");
}

/* Which of the operators that a node waits for ended last, and how long before it. */
function waitLine(run, program, times, node, begin) {
  let last = -1;
  for (const instance of program.waits[program.nodeInstance[node]]) {
    const other = program.nodeOf(instance, node);
    if (last < 0 || times.end[other] > times.end[last]) last = other;
  }
  if (last < 0) return "first of its step on this stream, " + timeText(times.start[node] - begin) + " after it began";
  const gap = times.start[node] - times.end[last], layer = program.nodeLayer[last];
  return "waited for " + nodeName(run, program, last) + (layer >= 0 ? " of layer " + layer : "") + (gap > 0 ? ", ready " + timeText(gap) + " earlier" : "");
}

function transferAt(run, rank, name, instant, slack, where) {
  let found = null;
  if (name === "send" || name === "recv")
    run.eachSend(instant - slack, instant + slack + 1, (send, local, start, end) => {
      const {replica, stage, ranks, step} = run.sends, base = run.stageBase(replica[send], stage[send]) + local + (name === "recv" ? ranks[send] : 0);
      if (base === rank) found = [name + " of step " + step[send], where, spanLine(start, end)];
    });
  else
    run.eachMove(instant - slack, instant + slack + 1, move => {
      const {from_rank, to_rank, request, bytes, tokens, start_ns, end_ns} = run.moves, {devices} = run.words;
      if ((name === "kv_out" ? from_rank : to_rank)[move] !== rank) return;
      const ends = [from_rank[move], to_rank[move]].map(one => one < 0 ? "host memory" : devices[one]).join(" to ");
      found = ["K/V of request " + request[move], ends, tokens[move].toLocaleString("en") + " tokens, " + (bytes[move] / 1e6).toPrecision(4) + " MB", spanLine(start_ns[move], end_ns[move])];
    });
  return found;
}

/* Show lines of text beside the pointer. */
function showTip(tip, lines, left, top, plot) {
  tip.replaceChildren(...lines.map((line, at) => {
    const found = document.createElement(at ? "div" : "b");
    found.textContent = line;
    return found;
  }));
  tip.style.left = Math.min(left + 14, plot.clientWidth - tip.offsetWidth - 4) + "px";
  tip.style.top = Math.max(0, Math.min(top + 14, plot.clientHeight - tip.offsetHeight - 4)) + "px";
}
