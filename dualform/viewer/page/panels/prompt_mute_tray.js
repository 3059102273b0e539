// What a language model would expect without what is muted. It stays in sight at the foot of the page.
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {link} from "viewer/core/highlight";
import {clear, toggleSet, undo} from "viewer/core/mute_sets";
import {canonical} from "viewer/core/requests";
import {bar, share} from "viewer/panels/expected";
import {disclaimer, slotWords} from "viewer/panels/mute_tray";
import {panel} from "viewer/panels/panel";
import {failing, fill, nameOf, visible} from "viewer/panels/passages";
import {trainAgain} from "viewer/panels/train_again";

const HELP =
  "What the model expects after the chosen token if what the muted slots added to its weights is taken away. " +
  "Everything else is as it was recorded: a model trained without that text would have learnt other things from the rest.";

export function promptMuteTray(run, changed) {
  const training = trainAgain(run, changed);
  const frame = panel({title: "Expected without the muted slots", name: "muted", help: HELP});
  const chips = el("div", {class: "row chips"}),
    hint = el("span", {class: "quiet-text"}),
    caption = el("span", {class: "honest", "data-test": "honest"});
  const back = el(
    "button",
    {type: "button", title: "Undo the last muting (u)", "data-test": "undo-mute", onclick: undo},
    "Undo",
  );
  const none = el("button", {type: "button", "data-test": "clear-mute", onclick: clear}, "Clear");
  const tools = el(
    "div",
    {class: "tray-bar row"},
    el("b", {}, "Mute"),
    hint,
    chips,
    el("span", {class: "row tray-undo"}, back, none),
    caption,
  );
  const element = el("div", {class: "tray prompt-tray", "data-test": "prompt-tray"}, tools, frame.element);
  const keys = el("span", {class: "row change-legend quiet-text"});
  frame.element.querySelector("h2").after(keys);
  frame.element.querySelector("header").after(training.element);
  let muted = null, // {answer, about}, and the same of a training without them
    retrained = null;
  const adam = run.optimizers.some((name) => /adam/i.test(name));
  hint.textContent =
    run.cannot.mute ??
    (inReport
      ? "Open the run to mute: dualform view RUN"
      : "Mute a passage or its document, to see what the model would expect without it.");
  const draw = () => {
    const {answer, about} = muted;
    const again = retrained && canonical(retrained.about) === canonical(about) ? retrained.answer : null;
    caption.textContent = `${disclaimer(again !== null)} ${slotWords(answer)}`;
    const rows = changeRows(answer, again);
    keys.replaceChildren(...legend(again !== null));
    fill(frame, changes(rows), rows, (again ?? answer).python);
  };
  const show = (answer, about) => {
    muted = {answer, about};
    draw();
  };
  const again = {
    lane: "fast",
    wanted: ({input, mute}) => (input && training.has({mute}) ? ["retrained", {input, mute}] : null),
    show(answer, about) {
      retrained = {answer, about};
      training.tell(answer);
      if (muted) draw();
    },
    fail: training.fail,
  };
  const update = ({mute}) => {
    const some = mute.length > 0 && !run.cannot.mute;
    element.classList.toggle("open", some);
    chips.hidden = back.hidden = none.hidden = caption.hidden = frame.element.hidden = !some;
    hint.hidden = some;
    chips.replaceChildren(...mute.map(chip));
    training.update({mute});
  };
  const what = `Adding up what is left of the weights${adam ? ", step by step as Adam did. This can take a while" : ""} …`;
  const wanted = ({input, mute}) => (mute.length && !run.cannot.mute ? ["mute", {input, mute}] : null);
  const busy = (text) => {
    if (text) caption.textContent = disclaimer(); // how many slots are muted comes with the answer
    frame.busy(text);
  };
  return {element, update, show, what, wanted, ...failing(frame), busy, again, close: training.close};
}

function chip(set) {
  const name = nameOf(set);
  return el(
    "button",
    {type: "button", class: "chip", "data-test": "chip", title: `Unmute ${name}`, onclick: () => toggleSet(set)},
    el("span", {class: "chip-name"}, name),
    el("span", {"aria-hidden": "true"}, "×"),
  );
}

function changeRows({before, after}, again) {
  return before.expected.map(({token, probability}, place) => {
    const then = after.expected[place].probability;
    const trained = again ? {again: again.again.expected[place].probability} : {};
    return {token, before: probability, after: then, ...trained, change: then - probability};
  });
}

function changes(rows) {
  const largest = Math.max(...rows.flatMap(({before, after, again = 0}) => [before, after, again]));
  const line = (p, kind, title) =>
    el("div", {class: "change-line", title}, el("span", {class: "track"}, bar(p / largest, kind)), share(p));
  return el(
    "ol",
    {class: "changes"},
    rows.map(({token, before, after, again, change}) =>
      link(
        el(
          "li",
          {class: "change"},
          el(
            "div",
            {class: "change-head"},
            el("b", {class: "mono"}, visible(token)),
            el("span", {title: "percentage points"}, points(change)),
          ),
          line(before, "before", "before muting"),
          line(after, "after", "after muting"),
          again !== undefined && line(again, "again", "trained again"),
        ),
        {token},
      ),
    ),
  );
}

function legend(trained) {
  const key = (kind, name) => el("span", {class: "key"}, el("span", {class: `bar ${kind}`}), name);
  const before = key("before", "before");
  if (!trained) return [before, key("after", "after, and the change in percentage points")];
  return [before, key("after", "muted, with the change in percentage points"), key("again", "trained again")];
}

/** A change in percentage points: +3.1, −0.4, ±0.0. */
function points(change) {
  const size = Math.abs(100 * change).toFixed(1);
  return `${Number(size) === 0 ? "±" : change > 0 ? "+" : "−"}${size}`;
}
