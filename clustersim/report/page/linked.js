/* Figures over the time of the run, which show the same part of it. */
"use strict";

const linkedFigures = {
  members: [],
  lanes: null,
  requests: null,
  behind: new Set(),   /* members that don't show the window yet: they come one at a time, those out of sight when they are seen */
  seen: new Set(),

  /* Take a member in; it shows what the others do. */
  add(member) {
    this.members.push(member);
    this.watch(member);
    if (this.window) member.follows(...this.window);
  },

  watch(member) {
    new IntersectionObserver(([entry]) => {
      this.seen[entry.isIntersecting ? "add" : "delete"](member);
      if (entry.isIntersecting) this.rest();
    }, {rootMargin: "200px"}).observe(member.plot);
  },

  /* One member shows these seconds; the others follow once it rests. */
  tell(teller, from, to) {
    this.window = [from, to];
    this.behind = new Set(this.members.filter(member => member !== teller));
    this.rest(150);
  },

  /* After some ms let the next member in sight follow; each is a task of its own, so that zooms come between. */
  rest(ms = 0) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const next = [...this.behind].find(member => this.seen.has(member));
      if (!next) return;
      this.behind.delete(next);
      next.follows(...this.window);
      this.rest();
    }, ms);
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
    const {requests} = linkedFigures;
    if (!customdata || !requests) return;
    requests.open(customdata[0]);
    requests.plot.closest("section").scrollIntoView({block: "center"});
  }

  follows(from, to) {
    this.following = true;
    Plotly.relayout(this.plot, {"xaxis.range": [from, to]}).then(() => { this.following = false; });
  }
}

function clustersimLinked(id) {
  linkedFigures.add(new LinkedFigure(document.getElementById(id)));
}
