"use strict";
// The page draws the states that the worker sends. Names and texts only become text, never HTML.
const windowMs = 20000;
const byId = id => document.getElementById(id);
const sections = [...document.querySelectorAll(".client")];
const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;

let worker, module, state, receivedAt = 0;
let arrivals = []; // functions that are called with each new state

// settings reads the form.
function settings() {
  const form = new FormData(byId("settings"));
  return {name: form.get("name"), fair: form.get("kind") === "fair", ttl_ms: Number(form.get("ttl"))};
}

// begin starts a new worker, whose clients have done nothing yet.
function begin() {
  if (worker) worker.terminate();
  state = undefined;
  arrivals = [];
  byId("trouble").textContent = "";
  worker = new Worker("worker.js");
  worker.onerror = event => trouble("The worker has failed: " + event.message);
  worker.onmessage = event => receive(event.data);
  worker.postMessage({settings: settings(), module});
}

function trouble(text) {
  byId("loading").textContent = "";
  byId("trouble").textContent = text;
}

function receive(message) {
  if (message.module) module = message.module;
  if (message.trouble) trouble(message.trouble);
  if (message.progress) byId("loading").textContent = progress(message.progress);
  if (!message.state) return;
  if (!state) performance.mark("ready"); // a test reads when
  state = message.state;
  receivedAt = performance.now();
  byId("loading").textContent = "";
  show();
  for (const arrived of [...arrivals]) arrived();
}

function progress({loaded, size}) {
  const megabytes = n => (n / 1e6).toFixed(1);
  return "Loading " + megabytes(loaded) + (size ? " of " + megabytes(size) : "") + " MB ...";
}

// now is the time of the stage.
const now = () => state.now + performance.now() - receivedAt;
const seconds = ms => (ms / 1000).toFixed(1) + " s";
const exactSeconds = ms => (ms / 1000).toFixed(3) + " s";

// make returns an element.
function make(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// buttonsOf says what each button of a client does: [label, action]. Without an action it is disabled.
function buttonsOf(client) {
  const isUp = client.state !== "killed", runs = isUp && !client.stopped;
  const canStop = isUp && state.stops;
  const lock = {
    idle: ["Acquire", "acquire"], waiting: ["Stop waiting", "release"], holding: ["Release", "release"],
    releasing: ["Release", ""], killed: ["Acquire", ""],
  }[client.state];
  return {
    lock: runs ? lock : [lock[0], ""],
    wire: client.cut ? ["Mend the wire", isUp ? "mend" : ""] : ["Cut the wire", isUp ? "cut" : ""],
    process: isUp ? ["kill -9", state.stops ? "kill" : ""] : ["Start a new process", "start"],
    signal: client.stopped ? ["Let it go on", "resume"] : ["Stop the process", canStop ? "stop" : ""],
  };
}

function statusOf(client) {
  const words = {
    idle: "does not need the lock", waiting: "waits for the lock", releasing: "releases the lock", killed: "is gone",
    holding: "holds the lock",
  };
  let text = client.state === "idle" && client.lost || words[client.state];
  if (client.state === "holding" && client.valid_until) {
    const left = client.valid_until - now();
    text += left > 0 ? ", valid for " + seconds(left) : ", which is not valid any longer";
  }
  const troubles = [];
  if (client.cut) troubles.push("its wire is cut");
  if (client.stopped) troubles.push("it stands still and knows nothing of the time");
  return [text, ...troubles].join("; ");
}

// show draws what only a new state changes.
function show() {
  byId("name").textContent = state.settings.name;
  for (const button of document.querySelectorAll("[data-story], #settings button")) button.disabled = false;
  sections.forEach((section, i) => {
    const client = state.clients[i], does = buttonsOf(client);
    for (const button of section.querySelectorAll("button")) {
      const [label, action] = does[button.dataset.button];
      button.textContent = label;
      button.dataset.action = action;
      button.disabled = action === "";
    }
    section.className = "client " + client.state + (client.cut || client.stopped ? " troubled" : "");
  });
  const remarks = state.log.filter(e => e.client === 0), last = remarks[remarks.length - 1];
  byId("verdict").textContent = last ? last.text : "";
  byId("verdict").className = last ? last.class : "";
  const rows = [...state.log].reverse().map(e => {
    const row = make("tr");
    row.append(make("td", exactSeconds(e.at), "number"), make("td", e.client ? "Client " + e.client : "", "number"),
      make("td", e.text, e.class));
    return row;
  });
  byId("log").replaceChildren(...rows);
  draw();
}

// lanes makes the rows of the timeline, once.
function lanes() {
  const timeline = byId("timeline");
  if (timeline.children.length === 0) {
    const axis = make("div", undefined, "row axis"), ticks = make("div", undefined, "lane");
    for (let s = windowMs / 1000; s > 0; s -= 10) {
      const tick = make("span", "-" + s + " s");
      tick.style.left = 100 - s * 100000 / windowMs + "%";
      ticks.append(tick);
    }
    axis.append(make("div"), ticks);
    timeline.append(axis);
    for (const row of state.rows) {
      const line = make("div", undefined, "row");
      line.append(make("div", row.label, "label"), make("div", undefined, "lane"));
      timeline.append(line);
    }
  }
  return [...timeline.querySelectorAll(".row:not(.axis) .lane")];
}

// draw draws what moves: the timeline and the time that is left.
function draw() {
  const end = now(), begin = end - windowMs;
  const at = t => Math.min(100, Math.max(0, (t - begin) * 100 / windowMs));
  lanes().forEach((lane, i) => {
    const row = state.rows[i];
    const spans = [...row.spans, ...row.marks, ...row.faults].filter(s => !s.to || s.to > begin);
    spans.forEach((span, n) => {
      const bar = lane.children[n] || lane.appendChild(make("i"));
      const to = span.to || end;
      bar.className = span.what;
      bar.style.left = at(span.from).toFixed(2) + "%";
      bar.style.width = (at(to) - at(span.from)).toFixed(2) + "%";
      const text = span.text + ", " + exactSeconds(to - span.from);
      if (bar.title !== text) bar.title = text;
      if (bar.textContent !== (span.short || "")) bar.textContent = span.short || "";
    });
    while (lane.children.length > spans.length) lane.lastChild.remove();
  });
  sections.forEach((section, i) => {
    const text = statusOf(state.clients[i]), shown = section.querySelector(".status");
    if (shown.textContent !== text) shown.textContent = text;
  });
}

// animate draws ten times a second, or once if the visitor wants less motion.
function animate() {
  if (state && !document.hidden) draw();
  setTimeout(animate, isCalm ? 1000 : 100);
}

const act = (client, action) => worker.postMessage({client, action});

// until waits for a state. It waits for ever if the visitor starts again.
function until(isSo) {
  return new Promise(resolve => {
    const arrived = () => {
      if (!state || !isSo(state)) return;
      arrivals = arrivals.filter(a => a !== arrived);
      resolve();
    };
    arrivals.push(arrived);
    arrived();
  });
}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

// tell plays a story: client 1 holds, client 2 waits, and a fault hits client 1.
async function tell(fault) {
  begin();
  const its = worker;
  await until(() => true);
  act(0, "acquire");
  await until(s => s.clients[0].state === "holding");
  act(1, "acquire");
  await until(s => s.clients[1].state === "waiting" && s.rows[1].spans.length > 0);
  await sleep(1500);
  if (worker !== its) return; // the visitor has started again
  act(0, fault);
  await until(s => s.clients[1].state === "holding");
  await sleep(2000);
  if (worker !== its) return;
  if (fault === "stop") act(0, "resume");
}

for (const button of document.querySelectorAll("[data-story]")) {
  button.addEventListener("click", () => tell(button.dataset.story));
}
sections.forEach((section, i) => section.addEventListener("click", event => {
  const action = event.target.dataset.action;
  if (action) act(i, action);
}));
byId("settings").addEventListener("submit", event => {
  event.preventDefault();
  begin();
});
begin();
animate();
