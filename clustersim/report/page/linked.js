/* Figures over the time of the run, which show the same part of it. */
"use strict";

const linkedFigures = {
  members: [],
  lanes: null,
  requests: null,

  /* Take a member in; it shows what the others do. */
  add(member) {
    this.members.push(member);
    if (this.window) member.follows(...this.window);
  },

  /* One member shows these seconds; the others follow once it rests. */
  tell(teller, from, to) {
    this.window = [from, to];
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      for (const member of this.members) if (member !== teller) member.follows(from, to);
    }, 150);
  },
};

/* A figure of plotly's whose x axis is the time of the run in seconds. */
class LinkedFigure {
  constructor(plot) {
    this.plot = plot;
    this.whole = [...plot._fullLayout.xaxis.range];
    plot.on("plotly_relayout", change => this.relaid(change));
    plot.on("plotly_click", ({points}) => this.click(points[0]));
  }

  relaid(change) {
    if (this.following || !Object.keys(change).some(key => key.startsWith("xaxis"))) return;
    const [from, to] = change["xaxis.autorange"] ? this.whole : this.plot._fullLayout.xaxis.range;
    linkedFigures.tell(this, Math.max(0, from), to);
  }

  /* A point is a request where it says which. */
  click({customdata}) {
    if (customdata && linkedFigures.requests) linkedFigures.requests.open(customdata[0]);
  }

  follows(from, to) {
    this.following = true;
    Plotly.relayout(this.plot, {"xaxis.range": [from, to]}).then(() => { this.following = false; });
  }
}

function clustersimLinked(id) {
  linkedFigures.add(new LinkedFigure(document.getElementById(id)));
}
