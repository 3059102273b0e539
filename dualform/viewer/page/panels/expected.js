// What a language model expects after a token: the likeliest next ones, with bars.
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {percent} from "viewer/core/format";
import {link} from "viewer/core/highlight";
import {state} from "viewer/core/state";
import {panel} from "viewer/panels/panel";
import {failing, fill, visible} from "viewer/panels/passages";

export function expectedPart() {
  const frame = panel({
    title: "Expected after this token",
    name: "expected",
    help: "The model's probabilities for the next token, the ten likeliest. Click one to go on with it.",
  });
  const show = ({tokens, separator, token, expected, python}) => {
    const before = tokens.slice(0, token + 1);
    const go = (next) => state.set({prompt: [...before, next].join(separator), token: null});
    const largest = Math.max(...expected.map(({probability}) => probability));
    const rows = expected.map((row) => expectedRow(row, largest, go));
    fill(
      frame,
      el("table", {class: "expected", "data-test": "expected"}, el("tbody", {}, rows)),
      expected.map((row, place) => ({rank: place + 1, ...row})),
      python,
    );
  };
  return {element: frame.element, show, ...failing(frame)};
}

function expectedRow({token, probability}, largest, go) {
  const words = visible(token);
  const name = inReport
    ? words
    : el("button", {type: "button", title: "go on with this token", onclick: () => go(token)}, words);
  const row = el(
    "tr",
    {},
    el("th", {scope: "row"}, name),
    el("td", {class: "expected-bar"}, bar(probability / largest, "before")),
    el("td", {class: "expected-number"}, share(probability)),
  );
  return link(row, {token});
}

/** With one decimal always, so that points stand below each other. */
export const share = (p) => (p >= 0.001 && p < 0.9995 ? `${(100 * p).toFixed(1)}%` : percent(p));

export function bar(length, kind) {
  return el("span", {class: `bar ${kind}`, style: {width: `${100 * length}%`}});
}
