// Passages of the training text behind a token of a prompt, shaded by attention.
//
//   const part = passagesPart(run);                // a pending request with an element
//   part.update({layer, summed, mute});            // what is pressed and muted; passages come by part.show
//
// Shades are alpha over the page's background, so that they read well on light and dark pages.
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {number} from "viewer/core/format";
import {link} from "viewer/core/highlight";
import {hasSet, toggleSet} from "viewer/core/mute_sets";
import {state} from "viewer/core/state";
import {panel} from "viewer/panels/panel";

const ABOVE = "255, 150, 0",
  BELOW = "60, 130, 255"; // attention above and below zero
const HELP =
  "Passages with the highest attention weights. A mark is a position of the training text that the layer has read with a key like " +
  "that of the chosen token. The stronger its shade, the higher its weight next to the highest that is shown; orange above zero, blue below.";
const NONE = "No position of the training text has attention here.";
const FAINTEST = 0.14,
  RANGE = 0.56; // of alpha: even a weak mark can be found, and the strongest can be read
const SIGNS = {"\n": "⏎", "\r": "⏎", "\t": "⇥", "": "∅"};

const sign = (character) => {
  if (/\s/.test(character)) return SIGNS[character] ?? "␣";
  return character < " " ? String.fromCharCode(0x2400 + character.charCodeAt(0)) : character;
};

/** A token that is pointed at: its spaces and line breaks as signs. */
export const visible = (token) => [...token].map(sign).join("") || SIGNS[""];

/** Tokens that are only read: every space or line break is one space. */
const readable = (words) => words.replace(/\s+/g, " ");

/** Positions of the training text in words; the end is left out of a set, but not in speech. */
export const positionsText = ([first, end]) =>
  end - first > 1 ? `${number(first)}–${number(end - 1)}` : number(first);

const titles = new Map(); // of the stretches of text that were shown, so that what is muted can be called by its name
const rangeKey = (range) => range.join("-");

/** What a set of muted slots is called. */
export function nameOf(set) {
  if (set.positions && titles.has(rangeKey(set.positions))) return titles.get(rangeKey(set.positions));
  const parts = Object.entries(set).map(([tag, values]) =>
    tag === "positions" || tag === "steps" ? `${tag} ${positionsText(values)}` : `${tag} ${values.join(", ")}`,
  );
  return parts.join(", ");
}

export function passagesPart(run) {
  const frame = panel({
    title: "Training text behind this token",
    name: "passages",
    help: HELP,
    note: run.cannot.time ? `Summed over all visits: ${run.cannot.time}.` : null,
  });
  const {element} = frame;
  const heading = element.querySelector("header"); // controls are there and below it, where a failure leaves them
  if (!run.cannot.time) heading.querySelector("h2").after(visitsToggle());
  if (run.layers.length > 1) heading.after(layerTabs(run));
  let mute = [];
  return {
    element,
    wanted: ({input, layer, summed}) => ["passages", {input, layer, summed}],
    lane: "fast",
    what: "Comparing the token with every slot of the layer …",
    show({passages, python}) {
      remember(passages);
      fill(frame, passages.length ? passageList(run, passages) : quiet(NONE), passages.flatMap(rowsOf), python);
      showMuted(element, mute);
    },
    update(now) {
      mute = now.mute;
      press(element, now);
      showMuted(element, mute);
    },
    ...failing(frame),
  };
}

/** What a panel shows, with the numbers and the code that belong to it. */
export function fill(frame, nodes, rows, python) {
  frame.show(nodes);
  frame.data(rows);
  frame.python(python);
}

/** How a panel is busy, fails and waits. A failure leaves nothing of what was shown; an answer that is on its way leaves it, dimmed. */
export function failing(frame) {
  const wait = (why) => fill(frame, quiet(why), null, null);
  const fail = (message) => {
    wait("");
    frame.fail(message);
  };
  return {busy: frame.busy, fail, wait, clear: () => frame.busy(null)};
}

const quiet = (words) => el("p", {class: "muted-note"}, words);

// The layer, and whether visits are summed.

function layerTabs(run) {
  const tab = ({name}, place) =>
    el(
      "button",
      {
        type: "button",
        "data-layer": name,
        title: place < 9 ? `Choose this layer (${place + 1})` : null,
        onclick: () => state.set({layer: name}, {replace: true}),
      },
      name,
    );
  return el("div", {class: "segmented layer-tabs", role: "group", "aria-label": "layer"}, run.layers.map(tab));
}

function visitsToggle() {
  const choice = (summed, words) =>
    el(
      "button",
      {type: "button", "data-summed": String(summed), onclick: () => state.set({summed}, {replace: true})},
      words,
    );
  return el(
    "div",
    {class: "segmented visits", role: "group", "aria-label": "attention", "data-test": "summed"},
    choice(true, "summed over all visits"),
    choice(false, "single visits"),
  );
}

function press(element, {layer, summed}) {
  for (const button of element.querySelectorAll("[data-layer], [data-summed]")) {
    const pressed = button.dataset.layer === layer || button.dataset.summed === String(summed);
    button.setAttribute("aria-pressed", String(pressed));
  }
}

// The list.

function remember(passages) {
  for (const {start, end, title, document} of passages) {
    const words = readable(title ?? "untitled");
    if (document) titles.set(rangeKey(document), words);
    titles.set(rangeKey([start, end]), `${words}, ${positionsText([start, end])}`);
  }
}

function passageList(run, passages) {
  const largest = Math.max(...passages.flatMap(({marks}) => marks.map(({score}) => Math.abs(score))));
  const list = el(
    "ol",
    {class: "passages", onkeydown: moveMark},
    passages.map((passage, place) => passageItem(run, passage, place + 1, largest)),
  );
  return withTip(list);
}

function passageItem(run, passage, rank, largest) {
  const head = el(
    "div",
    {class: "passage-head"},
    el("span", {class: "passage-rank"}, String(rank)),
    el("strong", {class: "passage-title"}, readable(passage.title ?? "untitled")),
    el(
      "div",
      {class: "passage-line"},
      el("span", {class: "passage-facts"}, facts(passage.marks[0])),
      run.cannot.mute || inReport ? null : muteButtons(passage),
    ),
  );
  return el(
    "li",
    {class: "passage", "data-test": "passage"},
    head,
    el("p", {class: "passage-text"}, pieces(passage, largest)),
  );
}

function facts({position, score, visits, step}) {
  const known = [`position ${number(position)}`, `attention ${number(score)}`];
  if (step !== null) known.push(`step ${number(step)}`);
  else if (visits !== null) known.push(`${number(visits)} visit${visits === 1 ? "" : "s"}`);
  return known.join(" · ");
}

function pieces(passage, largest) {
  const marks = new Map(passage.marks.map((mark) => [mark.position, mark]));
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(readable(plain));
    plain = "";
  };
  passage.tokens.forEach((token, place) => {
    plain += place ? passage.separator : "";
    const mark = marks.get(passage.start + place);
    if (!mark) return void (plain += token);
    flush();
    nodes.push(markElement(mark, token, passage.tokens[place + 1], largest, mark === passage.marks[0]));
  });
  flush();
  return nodes;
}

function markElement(mark, token, following, largest, best) {
  const then = following === undefined ? "" : ` · then came ${visible(following)}`;
  const element = el(
    "mark",
    {
      class: "token",
      "data-test": "mark",
      "data-position": mark.position,
      "data-score": mark.score,
      tabindex: best ? 0 : -1,
      "data-tip": facts(mark) + then,
    },
    visible(token),
  );
  const alpha = FAINTEST + RANGE * (largest ? Math.abs(mark.score) / largest : 0);
  element.style.background = `rgba(${mark.score < 0 ? BELOW : ABOVE}, ${alpha.toFixed(3)})`;
  return link(element, {id: mark.position, step: mark.step, token: following});
}

/** Left and right go from mark to mark of a passage, so that a passage is one stop of the tabulator key. */
function moveMark(event) {
  const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  const passage = by && event.target.closest("mark")?.closest(".passage");
  if (!passage) return;
  const marks = [...passage.querySelectorAll("mark")];
  marks[Math.min(marks.length - 1, Math.max(0, marks.indexOf(event.target) + by))].focus();
  event.preventDefault();
}

/** A list with what its marks say beside the one that is pointed at. */
function withTip(list) {
  const tip = el("div", {class: "passage-tip", role: "tooltip", "data-not-saved": ""});
  const around = el("div", {class: "passage-area"}, list, tip);
  const show = (event) => {
    const mark = event.target.closest("mark");
    tip.classList.toggle("shown", mark !== null);
    if (mark) place(tip, mark, around);
  };
  const hide = () => tip.classList.remove("shown");
  for (const kind of ["pointerover", "focusin"]) around.addEventListener(kind, show);
  for (const kind of ["pointerleave", "focusout"]) around.addEventListener(kind, hide);
  return around;
}

function place(tip, mark, around) {
  tip.textContent = mark.dataset.tip;
  const box = mark.getClientRects()[0],
    frame = around.getBoundingClientRect();
  const left = box.left - frame.left + box.width / 2 - tip.offsetWidth / 2;
  tip.style.left = `${Math.max(0, Math.min(left, frame.width - tip.offsetWidth))}px`;
  tip.style.top = `${box.bottom - frame.top + 5}px`;
}

// Muting.

function muteButtons({start, end, document}) {
  const button = (what, range, hook) =>
    el("button", {
      type: "button",
      "data-test": hook,
      "data-what": what,
      "data-range": rangeKey(range),
      onclick: () => toggleSet({positions: range}),
    });
  return el(
    "span",
    {class: "passage-actions", "data-not-saved": ""},
    button("this passage", [start, end], "mute-passage"),
    document && button("this document", document, "mute-document"),
  );
}

function showMuted(element, mute) {
  for (const passage of element.querySelectorAll(".passage")) passage.classList.remove("passage-muted");
  for (const button of element.querySelectorAll("[data-range]")) {
    const muted = hasSet(mute, {positions: rangeOf(button)});
    button.setAttribute("aria-pressed", String(muted));
    button.textContent = `${muted ? "unmute" : "mute"} ${button.dataset.what}`;
    if (muted) button.closest(".passage").classList.add("passage-muted");
  }
}

const rangeOf = (button) => button.dataset.range.split("-").map(Number);

// Data.

function rowsOf(passage, place) {
  const text = readable(passage.tokens.join(passage.separator));
  return passage.marks.map(({position, score, step, visits}) => ({
    rank: place + 1,
    title: passage.title,
    position,
    token: passage.tokens[position - passage.start],
    score,
    step,
    visits,
    text,
  }));
}
