"use strict";
// The picture works without this script, except for folded layers, the lines between stages and what pointing shows.

const tip = document.getElementById("tip");
const wires = document.getElementById("wires");
const stages = document.getElementById("stages");

function show(target, x, y) {
  tip.textContent = target.dataset.tip;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = x + 16 + box.width > innerWidth;
  tip.style.left = `${Math.max(4, right ? x - box.width - 12 : x + 16)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - box.height - 4))}px`;
}

function hide() {
  tip.hidden = true;
  for (const drawing of document.querySelectorAll("svg.busy")) {
    drawing.classList.remove("busy");
    for (const lit of drawing.querySelectorAll(".on")) lit.classList.remove("on");
  }
}

// Light up an operator with the edges that end or begin at it, and what is at their other ends.
function light(operator) {
  const drawing = operator.closest("svg.section");
  if (!drawing) return;
  const edges = [...drawing.querySelectorAll(".edge")].filter(
    edge => edge.dataset.from === operator.dataset.n || edge.dataset.to === operator.dataset.n);
  const ends = new Set(edges.flatMap(edge => [edge.dataset.from, edge.dataset.to]));
  ends.add(operator.dataset.n);
  for (const edge of edges) edge.classList.add("on");
  for (const other of drawing.querySelectorAll(".op")) if (ends.has(other.dataset.n)) other.classList.add("on");
  drawing.classList.add("busy");
}

document.addEventListener("mouseover", event => {
  const target = event.target.closest("[data-tip]");
  hide();
  if (target) { show(target, event.clientX, event.clientY); light(target); }
});
document.addEventListener("mousemove", event => {
  const target = event.target.closest("[data-tip]");
  if (target) show(target, event.clientX, event.clientY);
});
document.addEventListener("focusin", event => {
  if (!event.target.matches("[data-tip]:focus-visible")) return;
  const box = event.target.getBoundingClientRect();
  hide(); show(event.target, box.right, box.top); light(event.target);
});
document.addEventListener("focusout", hide);

// A folded run of layers shows, once opened, the drawing of the layers that it equals.
for (const run of document.querySelectorAll("details.run")) {
  run.addEventListener("toggle", () => {
    if (!run.open || run.querySelector("svg")) return;
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = "Each of these layers; the instants on hover are those of the first layer like it.";
    run.append(note, ...run.dataset.like.split(" ").map(id => document.getElementById(id).firstElementChild.cloneNode(true)));
  });
}

// Lines from the sends of a stage to the receives of the next one.
function draw() {
  const origin = stages.getBoundingClientRect();
  const columns = [...document.querySelectorAll(".stage")];
  wires.replaceChildren();
  for (const column of columns) {
    const next = columns.find(other => Number(other.dataset.stage) === Number(column.dataset.stage) + 1);
    if (!next) continue;
    const leaving = column.getBoundingClientRect().right - origin.left;
    const entering = next.getBoundingClientRect().left - origin.left;
    const senders = [...column.querySelectorAll('[data-wire^="send-"]')];
    senders.forEach((sender, index) => {
      const receiver = next.querySelector(`[data-wire="recv-${sender.dataset.wire.slice(5)}"]`);
      if (!receiver) return;
      const from = sender.firstElementChild.getBoundingClientRect();
      const to = receiver.firstElementChild.getBoundingClientRect();
      const middle = (leaving + entering) / 2 + 8 * (index - (senders.length - 1) / 2);
      // Past its neighbours on the right a line leaves below them, and arrives above those on the left.
      const beside = index === senders.length - 1, first = index === 0;
      const across = (from.left + from.right) / 2 - origin.left, below = from.bottom + 4 + 3 * index - origin.top;
      const into = (to.left + to.right) / 2 - origin.left - 14, above = to.top - 5 - 3 * index - origin.top;
      const start = beside ? `M${from.right - origin.left} ${(from.top + from.bottom) / 2 - origin.top}`
        : `M${across} ${from.bottom - origin.top}V${below}`;
      const end = first ? `V${(to.top + to.bottom) / 2 - origin.top}H${to.left - origin.left}`
        : `V${above}H${into}V${to.top - origin.top}`;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", "edge sync");
      path.setAttribute("marker-end", "url(#arrow-sync)");
      path.setAttribute("d", `${start}H${middle}${end}`);
      wires.append(path);
    });
  }
}
new ResizeObserver(draw).observe(stages);
for (const column of document.querySelectorAll(".stage")) new ResizeObserver(draw).observe(column);
draw();
