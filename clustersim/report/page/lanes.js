/* Device lanes: draws the spans in view as bars when they are few, else the busy fraction of each row in bins of time. */
"use strict";
async function clustersimLanes(id, table) {
  const plot = document.getElementById(id), note = document.getElementById(id + "-note");
  const rows = table.rows.length, offsets = table.offsets, count = table.count, MS = 1e-6;

  /* The columns: planes of bytes, compressed. */
  const packed = Uint8Array.from(atob(table.data), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const column = {};
  let at = 0;
  for (const [name, width] of table.columns) {
    const values = new Float64Array(count);
    for (let plane = 0, factor = 1; plane < width; plane++, factor *= 256)
      for (let i = 0; i < count; i++) values[i] += bytes[at++] * factor;
    column[name] = values;
  }
  const start = column.wait, end = new Float64Array(count);   /* ns from the start of the window */
  for (let row = 0; row < rows; row++) {
    let clock = 0;
    for (let i = offsets[row]; i < offsets[row + 1]; i++) {
      clock += start[i]; start[i] = clock; end[i] = clock + column.duration[i];
    }
  }

  const firstAfter = (values, low, high, limit, strict) => {   /* first index whose value is > limit (or ≥ limit) */
    while (low < high) {
      const middle = (low + high) >> 1;
      if (strict ? values[middle] > limit : values[middle] >= limit) high = middle; else low = middle + 1;
    }
    return low;
  };
  const time = ns => ns >= 1e9 ? (ns / 1e9).toPrecision(4) + " s" : ns >= 1e6 ? (ns / 1e6).toPrecision(4) + " ms"
    : ns >= 1e3 ? (ns / 1e3).toPrecision(4) + " us" : ns + " ns";
  const escape = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

  function inView() {
    const x = plot.layout.xaxis.range, y = plot.layout.yaxis.range;
    const from = Math.min(x[0], x[1]) / MS, to = Math.max(x[0], x[1]) / MS;
    const top = Math.max(0, Math.ceil(Math.min(y[0], y[1]) - 0.5));
    const bottom = Math.min(rows - 1, Math.floor(Math.max(y[0], y[1]) + 0.5));
    const slices = [];
    let spans = 0;
    for (let row = top; row <= bottom; row++) {
      const low = firstAfter(end, offsets[row], offsets[row + 1], from, true);
      const high = firstAfter(start, low, offsets[row + 1], to, false);
      slices.push([row, low, high]);
      spans += high - low;
    }
    return {from, to, slices, spans};
  }

  function bars(view) {
    const tall = (plot.clientHeight - 110) / Math.max(1, view.slices.length);   /* pixels of a row */
    const traces = table.families.map((family, index) => ({
      type: "bar", orientation: "h", name: family, uid: family, base: [], x: [], y: [], hovertext: [], text: [],
      hoverinfo: "text", width: tall < 8 ? 1 : 0.86, showlegend: false, legendrank: index, textposition: "none",
      marker: {color: table.colours[index], line: {width: view.spans > 600 || tall < 8 ? 0 : 0.6, color: "white"}},
      insidetextfont: {color: "white", size: 11}, insidetextanchor: "middle", textangle: 0, constraintext: "none",
    }));
    const pixel = (view.to - view.from) / Math.max(200, plot.clientWidth - 200);
    for (const [row, low, high] of view.slices)
      for (let i = low; i < high; i++) {
        const trace = traces[table.family_of_op[column.op[i]]], name = table.names[column.name[i]];
        const layer = column.layer[i] > 0 ? "layer " + (column.layer[i] - 1) + " · " : "";
        const from = Math.max(start[i], view.from), to = Math.min(end[i], view.to);
        trace.base.push(start[i] * MS); trace.x.push(column.duration[i] * MS); trace.y.push(row);
        trace.text.push(tall >= 12 && (to - from) / pixel > 7 * name.length + 6 ? escape(name) : "");
        trace.hovertext.push("<b>" + escape(name) + "</b> (" + escape(table.ops[column.op[i]]) + ")<br>" + layer +
          "step " + (table.step_base + column.step[i]) + " · stage " + column.stage[i] + "<br>" +
          escape(table.rows[row]) + "<br>" + time(column.duration[i]) + ", from " + time(start[i]));
      }
    for (const trace of traces) {
      trace.showlegend = trace.x.length > 0;
      if (trace.text.some(Boolean)) trace.textposition = "inside";
    }
    return traces;
  }

  function heat(view) {
    const bins = Math.max(100, Math.min(1100, plot.clientWidth - 220)), width = (view.to - view.from) / bins;
    const z = [], y = [], text = [];
    for (const [row, low, high] of view.slices) {
      const busy = new Float32Array(bins);
      for (let i = low; i < high; i++) {
        const from = Math.max(start[i], view.from), to = Math.min(end[i], view.to);
        const last = Math.min(bins - 1, Math.floor((to - view.from) / width));
        for (let bin = Math.min(bins - 1, Math.floor((from - view.from) / width)); bin <= last; bin++) {
          const left = view.from + bin * width;
          busy[bin] += Math.max(0, Math.min(to, left + width) - Math.max(from, left)) / width;
        }
      }
      z.push(busy); y.push(row); text.push(new Array(bins).fill(escape(table.rows[row])));
    }
    const x = new Float64Array(bins);
    for (let bin = 0; bin < bins; bin++) x[bin] = (view.from + (bin + 0.5) * width) * MS;
    return [{
      type: "heatmap", uid: "busy", x, y, z, text, zmin: 0, zmax: 1, ygap: 1, zsmooth: false,
      colorscale: [[0, "#f1f4f7"], [0.02, "#d6e6f2"], [0.5, "#5aa2cf"], [1, "#08457e"]],
      colorbar: {title: {text: "share of time busy", side: "right"}, tickformat: ".0%", thickness: 12, outlinewidth: 0},
      hovertemplate: "%{text}<br>busy %{z:.0%} of the time at %{x:.4~f} ms<extra></extra>",
    }];
  }

  function rowTicks(view) {   /* every row, or where that would crowd only the first row of a device */
    const fit = Math.max(4, (plot.clientHeight - 110) / 13);
    let shown = view.slices.map(([row]) => row), text = row => table.rows[row];
    if (shown.length > fit) {
      const heads = table.device_rows.filter(row => row >= shown[0] && row <= shown[shown.length - 1]);
      const every = Math.ceil(heads.length / fit);
      shown = heads.filter((_, index) => index % every === 0);
      text = row => table.devices[row];
    }
    return {vals: shown, texts: shown.map(row => escape(text(row)))};
  }

  let drawing = false;
  function draw() {
    if (drawing) return;
    drawing = true;
    const view = inView(), few = view.spans <= table.max_bars, ticks = rowTicks(view);
    plot.layout.yaxis.tickvals = ticks.vals;
    plot.layout.yaxis.ticktext = ticks.texts;
    note.textContent = few
      ? view.spans.toLocaleString("en") + " operators in view, each drawn as a bar. Point at one for its name, layer, step and duration."
      : view.spans.toLocaleString("en") + " operators in view, too many to tell apart: each cell shows the share of its time " +
        "in which the stream was busy. Drag a box to zoom in until the operators appear.";
    Plotly.react(plot, few ? bars(view) : heat(view), plot.layout, table.config).then(() => { drawing = false; });
  }

  const show = (from, to) => Plotly.relayout(plot, {"xaxis.range": [from, to], "yaxis.range": [rows - 0.5, -0.5]});
  plot.on("plotly_relayout", change => {
    if (change["xaxis.autorange"] || change["yaxis.autorange"]) show(0, table.window_ms); else draw();
  });
  for (const button of document.querySelectorAll("[data-lanes='" + id + "']"))
    button.addEventListener("click", () => show(Number(button.dataset.from), Number(button.dataset.to)));
  draw();
}
