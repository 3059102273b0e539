// The prompt, as text to write and as tokens to choose from; in a report, the prompts that it holds.
import {inputsInReport, inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {state} from "viewer/core/state";
import {panel} from "viewer/panels/panel";
import {visible} from "viewer/panels/passages";

const REST_MS = 400; // without a key after which the prompt is sent

let reported = null;

/** The prompts in a report, each with the tokens it can be asked about; null is the last. */
export function promptsInReport() {
  if (reported) return reported;
  const prompts = new Map();
  for (const {prompt, token} of inputsInReport())
    if (prompt) prompts.set(prompt, [...(prompts.get(prompt) ?? []), token]);
  reported = prompts;
  return prompts;
}

export function promptPart(run) {
  const frame = panel({title: "Prompt", name: "prompt"});
  const chooser = inReport ? reportList() : promptField(run);
  const strip = el("div", {
    class: "prompt-tokens",
    role: "radiogroup",
    "aria-label": "tokens of the prompt",
    onkeydown: moveToken,
  });
  const hint = el("p", {class: "muted-note"});
  strip.addEventListener("click", (event) => chooseToken(event.target.closest("[data-token]")));
  frame.show([chooser.element, strip, hint]);
  let drawn = null;
  return {
    element: frame.element,
    close: chooser.close,
    update: (now) => chooser.update(now.prompt),
    tokens(answer) {
      const wanted = answer && JSON.stringify([answer.tokens, answer.separator]);
      if (wanted !== drawn) strip.replaceChildren(...(answer ? tokenElements(answer, chooser.answered?.()) : []));
      drawn = wanted;
      hint.textContent =
        !answer || answer.tokens.length < 2
          ? ""
          : inReport
            ? "Tokens in grey are not in this report."
            : "Choose a token: click it, or use the arrow keys.";
      if (answer) markToken(strip, answer.token);
    },
  };
}

function promptField(run) {
  const field = el("textarea", {
    class: "prompt-field",
    "data-test": "prompt",
    rows: 2,
    spellcheck: "false",
    autocomplete: "off",
    "aria-label": "prompt",
    placeholder: "Write a prompt",
    title: "Enter asks, Shift+Enter breaks the line",
  });
  let timer = null,
    sent = null;
  const send = (options) => {
    clearTimeout(timer);
    if (!field.value || field.value === sent) return;
    sent = field.value;
    state.set({prompt: sent === run.example ? null : sent, token: null}, options);
  };
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => send({replace: true}), REST_MS);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  const update = (prompt) => {
    // what is being written is left alone
    if (prompt !== sent) field.value = prompt ?? "";
    sent = prompt;
  };
  return {element: field, update, close: () => clearTimeout(timer)};
}

function reportList() {
  const buttons = [...promptsInReport().keys()].map((prompt) =>
    el(
      "button",
      {type: "button", class: "prompt-choice", "data-prompt": prompt, onclick: () => state.set({prompt, token: null})},
      prompt,
    ),
  );
  let chosen = null;
  const update = (prompt) => {
    chosen = prompt;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.prompt === prompt));
  };
  const element = el(
    "div",
    {class: "prompt-choices", role: "group", "aria-label": "prompts in this report", "data-test": "prompt"},
    buttons,
  );
  return {element, update, answered: () => promptsInReport().get(chosen), close() {}};
}

// Spans, not buttons: they break at spaces as text does. The sign of a space lies over it, so that choosing one moves nothing.
function tokenElements({tokens, separator}, answered = null) {
  const isThere = (place) =>
    !answered || answered.includes(place) || (answered.includes(null) && place === tokens.length - 1);
  return tokens.flatMap((token, place) => {
    const element = el(
      "span",
      {
        class: isThere(place) ? "prompt-token" : "prompt-token absent",
        role: "radio",
        "data-test": "token",
        "data-token": place,
        "data-sign": /\S/.test(token) ? null : visible(token),
        "aria-label": `token ${place + 1}: ${visible(token)}`,
      },
      token.replace(/\n/g, " "),
    );
    return [place ? separator : "", element, token.includes("\n") ? el("br") : ""];
  });
}

function markToken(strip, chosen) {
  for (const element of strip.querySelectorAll("[data-token]")) {
    const is = Number(element.dataset.token) === chosen;
    element.setAttribute("aria-checked", String(is));
    element.tabIndex = is ? 0 : -1;
    if (is) scrollTo(strip, element);
  }
}

/** Within the strip alone: the page stays where it is. */
function scrollTo(strip, element) {
  const box = strip.getBoundingClientRect(),
    own = element.getBoundingClientRect();
  if (own.top < box.top) strip.scrollTop -= box.top - own.top;
  else if (own.bottom > box.bottom) strip.scrollTop += own.bottom - box.bottom;
}

function chooseToken(element) {
  if (!element) return;
  const strip = element.parentElement,
    place = Number(element.dataset.token),
    last = strip.querySelectorAll("[data-token]").length - 1;
  markToken(strip, place); // at once, before the answer
  element.focus({preventScroll: true});
  state.set({token: place === last ? null : place}, {replace: true});
}

function moveToken(event) {
  const all = [...event.currentTarget.querySelectorAll("[data-token]")];
  const now = all.findIndex((element) => element.getAttribute("aria-checked") === "true");
  const to = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: all.length - 1}[event.key];
  if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation(); // the page has uses for arrows too
  chooseToken(all[to]);
}
