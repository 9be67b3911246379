/* What links carried: collectives, sends and moves put payloads on ways, and a way takes bytes of the capacity of links. */
"use strict";

class LinkLoad {
  static async read(data, run) {
    const told = data.link_load;
    if (!told) return null;
    const names = ["payloads", "carried", "sent"], parts = await Promise.all(names.map(name => unpacked(told.sections[name])));
    return new LinkLoad(told, Object.fromEntries(names.map((name, at) => [name, parts[at]])), run);
  }

  constructor(told, {payloads, carried, sent}, run) {
    Object.assign(this, {...told, payloads, carried: carried.carried, sent, run});
    this.place = new Map(this.links.map(([number], at) => [number, at]));
    this.capacity = Float64Array.from(this.links, link => link[4]);
    this.exchanged = new Map(this.exchanges.map(([replica, program, pool, some]) => [replica + " " + program, {pool, some}]));
    this.moved = new Map(this.moves.map(([from, to, breaks]) => [from + " " + to, breaks]));
    this.lanes = this.lanes.map(([name, links, capacity]) => ({name, links, capacity}));
    this.laneOfWay = this.ways.map(([links, loads]) => this.perLane(links, loads));
  }

  /* What a byte of payload takes of the links of each lane: [[lane, bytes], …]. */
  perLane(links, loads) {
    this.laneOf ||= new Map(this.lanes.flatMap(({links: some}, lane) => some.map(link => [link, lane])));
    const found = new Map();
    links.forEach((link, at) => found.set(this.laneOf.get(link), (found.get(this.laneOf.get(link)) || 0) + loads[at]));
    return [...found];
  }

  /* The payload of what a step of a replica exchanges; 0 where the page has it not. */
  payload(pool, replica, step, amount) {
    const of = name => this.payloads[name + " " + pool], replicas = of("replica");
    const low = firstAbove(replicas, replica - 1), row = firstAbove(of("step"), step, low, firstAbove(replicas, replica)) - 1;
    return row >= low ? of("amount " + amount)[row] : 0;
  }

  static way(breaks, payload) { return breaks.findLast(([least]) => least <= payload)[1]; }

  /* Call visit(node, payload, way) for each exchange of a pass. */
  eachExchange(pass, index, visit) {
    const {run} = this, {replica, program, step} = run.runs, told = this.exchanged.get(replica[pass] + " " + program[pass]);
    if (!told) return;
    told.ofNode ||= this.byNode(run.programs[program[pass]], told.some);
    for (const [node, [, , amount, share, breaks]] of told.ofNode) {
      const payload = share * this.payload(told.pool, replica[pass], step[pass] + index, amount);
      if (payload > 0) visit(node, payload, LinkLoad.way(breaks, payload));
    }
  }

  /* [node, what it exchanges] of a program. */
  byNode(program, some) {
    const named = new Map(some.map(one => [one[0] + " " + one[1].join(), one])), found = [];
    for (let node = 0; node < program.nodes; node++) {
      const members = program.members.subarray(program.memberAt[node], program.memberAt[node + 1]);
      const one = named.get(program.instanceClass[program.nodeInstance[node]] + " " + members.join());
      if (one) found.push([node, one]);
    }
    return found;
  }

  /* Call visit(way, payload, start, end, name, of what) for sends between stages and moves that overlap [from, to). */
  eachTransfer(from, to, visit) {
    const {run} = this, {way, bytes} = this.sent, {rankAt, step, replica} = run.sends;
    run.eachSend(from, to, (send, local, start, end) => {
      const at = rankAt[send] + local;
      if (way[at] >= 0) visit(way[at], bytes[at], start, end, "send", "step " + step[send] + " of replica " + replica[send]);
    });
    run.eachMove(from, to, move => this.moveOn(move, visit));
  }

  moveOn(move, visit) {
    const {from_rank, to_rank, bytes, start_ns, end_ns, request} = this.run.moves, breaks = this.moved.get(from_rank[move] + " " + to_rank[move]);
    if (breaks && breaks.length) visit(LinkLoad.way(breaks, bytes[move]), bytes[move], start_ns[move], end_ns[move], "K/V", "request " + request[move]);
  }

  /* Payload of each way in [from, to), of which what overlaps it in part counts in part; from parts of the run where `coarse`. */
  payloadsIn(from, to, coarse) {
    const found = new Float64Array(this.ways.length), {run} = this;
    const add = (way, payload, start, end) => { found[way] += payload * Math.max(0, Math.min(to, end) - Math.max(from, start)) / Math.max(1, end - start); };
    if (coarse) {
      this.addParts(found, from, to);
      run.eachMove(from, to, move => this.moveOn(move, add));
      return found;
    }
    run.eachPass(from, to, (pass, index) => {
      const {start, end} = run.nodeTimes(pass, index);
      this.eachExchange(pass, index, (node, payload, way) => add(way, payload, start[node], end[node]));
    });
    this.eachTransfer(from, to, add);
    return found;
  }

  addParts(found, from, to) {
    const partNs = Math.max(1, this.run.end) / this.parts, last = Math.min(this.parts - 1, Math.floor(to / partNs));
    for (let way = 0; way < found.length; way++)
      for (let part = Math.max(0, Math.floor(from / partNs)); part <= last; part++) {
        const seen = Math.min(to, (part + 1) * partNs) - Math.max(from, part * partNs);
        found[way] += this.carried[way * this.parts + part] * this.units[way] * seen / partNs;
      }
  }

  /* Bytes of capacity that each link gave to payloads of ways, in order of the links that the page has. */
  bytesOf(payloads) {
    const found = new Float64Array(this.links.length);
    this.ways.forEach(([links, loads], way) => {
      if (payloads[way]) links.forEach((link, at) => { found[this.place.get(link)] += loads[at] * payloads[way]; });
    });
    return found;
  }

  /* The bytes that each link could carry in [from, to), with what faults left of it. */
  couldIn(from, to) {
    return Float64Array.from(this.links, ([link], at) => this.capacity[at] * this.lasting(link, from, to) / NS);
  }

  /* The time in [from, to) in which a link without faults carries as much as this one does with them. */
  lasting(link, from, to) {
    const mine = this.faultsOf(link);
    if (!mine.length) return to - from;
    const instants = mine.flatMap(([, at, until]) => [at, until ?? to]).filter(one => one > from && one < to);
    const bounds = [...new Set([from, ...instants, to])].sort((a, b) => a - b);
    return bounds.slice(1).reduce((sum, bound, i) => sum + (bound - bounds[i]) * this.left(link, bounds[i]), 0);
  }

  faultsOf(link) {
    this.weakened ||= new Map(this.faults.flatMap(([links]) => links).map(one => [one, this.faults.filter(([links]) => links.includes(one))]));
    return this.weakened.get(link) || [];
  }

  /* The bytes that the links of a lane could carry in [from, to). */
  laneCould(lane, from, to) {
    const {links, capacity} = this.lanes[lane];
    if (!links.some(link => this.faultsOf(link).length)) return capacity * (to - from) / NS;
    return links.reduce((sum, link) => sum + this.capacity[this.place.get(link)] * this.lasting(link, from, to), 0) / NS;
  }

  /* What faults leave of a link at an instant. */
  left(link, instant) {
    return this.faultsOf(link).filter(([, at, until]) => at <= instant && (until === null || instant < until)).reduce((share, fault) => share * fault[3], 1);
  }

  /* The share of what faults leave of a lane's capacity that was taken, in parts of the run, moves left out. */
  sharesOf(lane) {
    this.shares ||= this.lanes.map(() => null);
    if (this.shares[lane]) return this.shares[lane];
    const found = new Float32Array(this.parts), partNs = Math.max(1, this.run.end) / this.parts;
    const could = Float64Array.from(found, (_, part) => Math.max(1, this.laneCould(lane, part * partNs, (part + 1) * partNs)));
    this.laneOfWay.forEach((some, way) => some.forEach(([of, load]) => {
      if (of === lane) for (let part = 0; part < this.parts; part++) found[part] += load * this.units[way] * this.carried[way * this.parts + part] / could[part];
    }));
    return this.shares[lane] = found;
  }
}

/* What the links of this page's run carried, read once; null where that is not told. */
async function linkLoad() {
  const run = await foldedRun();
  return linkLoad.found ||= LinkLoad.read(runData(), run);
}
