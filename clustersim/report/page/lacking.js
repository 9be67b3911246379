/* A page without its script of figures shows its texts and tables, and says what lacks. */
if (typeof Plotly === "undefined") {
  window.clustersimFigure = () => new Promise(() => {});
  document.addEventListener("DOMContentLoaded", () => {
    const note = document.createElement("p");
    note.className = "remarks";
    note.id = "lacking";
    note.style.gridColumn = "1 / -1";
    note.textContent = "Figures lack " + SCRIPT_FILE + ", for which this page looks at " + SCRIPT_SOURCE + ": "
      + "copy it along with the page, or write the page with --script inside.";
    document.querySelector("main").prepend(note);
  });
}
