// Colours of the chart follow those of the page, at first and when the reader's system changes them.
const dark = matchMedia("(prefers-color-scheme: dark)");
function colours() {
  const plot = document.getElementById("scatter");
  const [ink, muted, grid, paper] = dark.matches
    ? ["#e4e9ee", "#9fadba", "#2c3742", "#182028"] : ["#1b2733", "#5b6b7b", "#e6ebf0", "#ffffff"];
  const change = { "font.color": ink, paper_bgcolor: paper, plot_bgcolor: paper };
  for (const axis of Object.keys(plot.layout).filter((key) => /^[xy]axis/.test(key))) {
    change[`${axis}.gridcolor`] = grid;
    change[`${axis}.tickfont.color`] = muted;
    change[`${axis}.title.font.color`] = muted;
  }
  Plotly.relayout(plot, change);
}
dark.addEventListener("change", colours);
