/* Light or dark: as the reader's system has it, or as the reader chose. Figures and canvases are drawn in colours of light
   pages, and these are exchanged where a dark page can't show them. */
"use strict";

const DARK = {
  "white": "#182028", "#fff": "#182028", "#ffffff": "#182028", "#1b2733": "#e4e9ee", "#5b6b7b": "#9fadba", "#e6ebf0": "#2c3742",
  "#b8c4cf": "#4d5b68", "#b3261e": "#ff8a80", "#0072b2": "#2f8fd0", "#004d80": "#1769aa", "#7a3e9d": "#b07fd0", "#7e57c2": "#a07fe0",
  "#8c564b": "#b5796c", "#7a5230": "#b98a5c", "#595959": "#a3a3a3", "#d9dfe5": "#566472", "#6b7785": "#7f93ab", "#000000": "#d5dbe1",
  "#f1f4f7": "#1f2932", "#d6e6f2": "#1f3c55", "#5aa2cf": "#3f87bd", "#08457e": "#a8d8ff",
  "#440154": "#a565b8", "#482878": "#8a6fc0", "#3e4989": "#6f83c4",
};

const theme = {
  figures: new Map(),
  asked: matchMedia("(prefers-color-scheme: dark)"),

  get dark() { return document.documentElement.dataset.theme === "dark"; },

  /* Take what the reader chose, else what the system has; a page from disk may not be able to remember. */
  begin() {
    let chosen = null;
    try { chosen = localStorage.getItem("clustersim-theme"); } catch { /* not remembered */ }
    document.documentElement.dataset.theme = chosen || (this.asked.matches ? "dark" : "light");
    this.asked.addEventListener("change", () => this.choose(this.asked.matches ? "dark" : "light", false));
    document.addEventListener("click", event => { if (event.target.closest("#theme")) this.choose(this.dark ? "light" : "dark"); });
  },

  choose(name, kept = true) {
    document.documentElement.dataset.theme = name;
    if (kept) try { localStorage.setItem("clustersim-theme", name); } catch { /* not remembered */ }
    for (const [id, figure] of this.figures) this.recolour(id, figure);
    if (typeof linkedFigures !== "undefined") for (const member of linkedFigures.members) if (member.recolour) member.recolour();
  },

  /* Give a figure the colours of the page and leave all else as the reader has it. */
  recolour(id, {data, layout}) {
    const {template, ...own} = layout;
    Plotly.relayout(id, {template: themed(template), ...Object.fromEntries(colourPaths(own))});
    data.forEach((trace, at) => {
      const paths = colourPaths(trace);
      if (paths.length) Plotly.restyle(id, Object.fromEntries(paths.map(([path, colour]) => [path, [colour]])), [at]);
    });
  },
};

/* What a dark page shows in place of a colour, which may let through what is behind it; nothing where it is the same. */
function darkened(text) {
  if (text.length > 32) return undefined;
  const parts = /^rgba\((\d+),(\d+),(\d+),([\d.]+)\)$/.exec(text);
  if (!parts) return DARK[text.toLowerCase()];
  const found = DARK["#" + parts.slice(1, 4).map(one => Number(one).toString(16).padStart(2, "0")).join("")];
  return found && "rgba(" + [1, 3, 5].map(at => parseInt(found.slice(at, at + 2), 16)).join() + "," + parts[4] + ")";
}

/* A colour, or a copy of a value with all its colours, as the page shows them. */
function themed(value) {
  if (typeof value === "string") return theme.dark && darkened(value) || value;
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value) || typeof value[0] === "number") return value;
  if (Array.isArray(value)) return value.map(themed);
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, themed(one)]));
}

/* [path, colour of this page] of all colours in a value that a dark page exchanges; lists of colours whole. */
function colourPaths(value, path = "") {
  if (typeof value === "string") return darkened(value) ? [[path, themed(value)]] : [];
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value) || typeof value[0] === "number") return [];
  if (Array.isArray(value) && value.some(one => typeof one === "string")) return value.some(one => darkened(String(one))) ? [[path, themed(value)]] : [];
  return Object.entries(value).flatMap(([key, one]) => colourPaths(one, Array.isArray(value) ? path + "[" + key + "]" : path ? path + "." + key : key));
}

const ruler = document.createElement("canvas").getContext("2d");

/* A text in lines of at most so many pixels, broken behind spaces, dots, underscores, slashes and hyphens. */
function inLines(text, room, size) {
  ruler.font = size + "px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const lines = [""];
  for (const part of text.match(/[^ ._/-]*[ ._/-]?/g)) {
    const last = lines.length - 1;
    if (lines[last] && ruler.measureText((lines[last] + part).trim()).width > room) lines.push(part);
    else lines[last] += part;
  }
  return lines.map(line => line.trim()).join("<br>");
}

/* Break titles below axes, names in legends and names above columns, so that each fits its own room on a page of any
   width; short axes have few ticks, names of columns that are close stand in two rows. */
function fitTexts(plot, {data, layout}) {
  const found = plot._fullLayout, changes = {};
  const put = (path, text, now) => { if (text !== now) changes[path] = text; };
  for (const [name, {title, nticks = 0}] of Object.entries(layout)) {
    if (!/^xaxis\d*$/.test(name)) continue;
    const {_length: room, title: now, nticks: many = 0} = found[name];
    if (title && title.text) put(name + ".title.text", inLines(title.text, room, 12), now.text);
    put(name + ".nticks", room < 200 ? Math.max(2, Math.floor(room / 50)) : nticks, many);
  }
  const named = (layout.annotations || []).map((one, at) => [one, at]).filter(([one]) => one.name === "column");
  const each = named.length && found.xaxis._length / named.length, rows = named.length && each < 70 ? 2 : 1;
  const texts = named.map(([{text}]) => inLines(text, rows * each - 4, 11));
  const lines = Math.max(0, ...texts.filter((_, place) => place % 2 === 0).map(text => text.split("<br>").length));
  if (rows > 1) put("margin.t", 30 + 15 * lines, found.margin.t);
  named.forEach(([_, at], place) => {
    put("annotations[" + at + "].text", texts[place], found.annotations[at].text);
    put("annotations[" + at + "].yshift", (place % rows) * (15 * lines + 4), found.annotations[at].yshift);
  });
  const names = data.map(({name}) => name && inLines(name, found.width - 120, 12)), broken = names.some((name, at) => name !== plot.data[at].name);
  return broken || Object.keys(changes).length ? Plotly.update(plot, broken ? {name: names} : {}, changes).then(() => plot) : plot;
}

/* Draw a figure of plotly's in the colours of the page, with texts that fit. */
function clustersimFigure(id, figure) {
  theme.figures.set(id, figure);
  return Plotly.newPlot(id, themed(figure)).then(plot => fitTexts(plot, figure));
}

let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { for (const [id, figure] of theme.figures) fitTexts(document.getElementById(id), figure); }, 300);
});

theme.begin();
