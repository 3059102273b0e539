// What a language model would expect without what is muted. It stays in sight at the foot of the page.
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {link} from "viewer/core/highlight";
import {clear, toggleSet, undo} from "viewer/core/mute_sets";
import {bar, share} from "viewer/panels/expected";
import {slotWords} from "viewer/panels/mute_tray";
import {panel} from "viewer/panels/panel";
import {failing, fill, nameOf, visible} from "viewer/panels/passages";

const DISCLAIMER = "Recorded contributions removed, not retrained.";
const HELP =
  "What the model expects after the chosen token if what the muted slots added to its weights is taken away. " +
  "Everything else is as it was recorded: a model trained without that text would have learnt other things from the rest.";

export function promptMuteTray(run) {
  const frame = panel({title: "Expected without the muted slots", name: "muted", help: HELP});
  const chips = el("div", {class: "row chips"}),
    hint = el("span", {class: "quiet-text"}),
    disclaimer = el("span", {class: "honest", "data-test": "honest"});
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
    disclaimer,
  );
  const element = el("div", {class: "tray prompt-tray", "data-test": "prompt-tray"}, tools, frame.element);
  frame.element.querySelector("h2").after(legend());
  const adam = run.optimizers.some((name) => /adam/i.test(name));
  hint.textContent =
    run.cannot.mute ??
    (inReport
      ? "Open the run to mute: dualform view RUN"
      : "Mute a passage or its document, to see what the model would expect without it.");
  const show = (answer) => {
    disclaimer.textContent = `${DISCLAIMER} ${slotWords(answer)}`;
    fill(frame, changes(answer), changeRows(answer), answer.python);
  };
  const update = ({mute}) => {
    const some = mute.length > 0 && !run.cannot.mute;
    element.classList.toggle("open", some);
    chips.hidden = back.hidden = none.hidden = disclaimer.hidden = frame.element.hidden = !some;
    hint.hidden = some;
    chips.replaceChildren(...mute.map(chip));
  };
  const what = `Adding up what is left of the weights${adam ? ", step by step as Adam did. This can take a while" : ""} …`;
  const wanted = ({input, mute}) => (mute.length && !run.cannot.mute ? ["mute", {input, mute}] : null);
  const busy = (text) => {
    if (text) disclaimer.textContent = DISCLAIMER; // how many slots are muted comes with the answer
    frame.busy(text);
  };
  return {element, update, show, what, wanted, ...failing(frame), busy};
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

function changeRows({before, after}) {
  return before.expected.map(({token, probability}, place) => {
    const then = after.expected[place].probability;
    return {token, before: probability, after: then, change: then - probability};
  });
}

function changes(answer) {
  const rows = changeRows(answer),
    largest = Math.max(...rows.flatMap(({before, after}) => [before, after]));
  const line = (p, kind) =>
    el(
      "div",
      {class: "change-line", title: `${kind} muting`},
      el("span", {class: "track"}, bar(p / largest, kind)),
      share(p),
    );
  return el(
    "ol",
    {class: "changes"},
    rows.map(({token, before, after, change}) =>
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
          line(before, "before"),
          line(after, "after"),
        ),
        {token},
      ),
    ),
  );
}

const legend = () =>
  el(
    "span",
    {class: "row change-legend quiet-text"},
    el("span", {class: "bar before"}),
    "before",
    el("span", {class: "bar after"}),
    "after, and the change in percentage points",
  );

/** A change in percentage points: +3.1, −0.4, ±0.0. */
function points(change) {
  const size = Math.abs(100 * change).toFixed(1);
  return `${Number(size) === 0 ? "±" : change > 0 ? "+" : "−"}${size}`;
}
