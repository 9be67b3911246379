// A click on a point or a row shows the command that simulates it again.
function clustersimShow(point) {
  let box = document.getElementById("command");
  if (!box) {
    box = document.createElement("div");
    box.id = "command";
    box.innerHTML = '<span class="what"></span><code></code><button type="button">Copy</button><button type="button">Close</button>';
    document.body.append(box);
    const [copy, close] = box.querySelectorAll("button");
    copy.onclick = () => {
      const code = box.querySelector("code");
      getSelection().selectAllChildren(code);
      document.execCommand("copy");  // a page from disk may have no navigator.clipboard
    };
    close.onclick = () => box.classList.remove("shown");
  }
  box.querySelector(".what").textContent = `point ${point}: ${SWEPT.words[point - 1]}`;
  box.querySelector("code").textContent = SWEPT.commands[point - 1];
  box.classList.add("shown");
  document.querySelectorAll(".runs tr.chosen").forEach((row) => row.classList.remove("chosen"));
  document.getElementById(`point-${point}`)?.classList.add("chosen");
}
function clustersimPoints(identity) {
  document.getElementById(identity).on("plotly_click", (event) => {
    const point = event.points[0].customdata;
    if (point) clustersimShow(point);
  });
}
document.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-point]");
  if (row) clustersimShow(Number(row.dataset.point));
});
document.addEventListener("keydown", (event) => {
  const row = event.key === "Enter" && event.target.closest && event.target.closest("tr[data-point]");
  if (row) clustersimShow(Number(row.dataset.point));
});
