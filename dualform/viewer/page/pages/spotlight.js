// The spotlight on one input: what the model says, which training slots every layer attends to, and what if they were muted.
import {el} from "viewer/core/dom";
import {pageOf} from "viewer/core/input_list";
import {PendingRequests} from "viewer/core/pending_requests";
import {inputOf} from "viewer/core/requests";
import {state} from "viewer/core/state";
import {chartPanels} from "viewer/panels/class_charts";
import {missingPanel} from "viewer/panels/facts";
import {inputPanel} from "viewer/panels/input";
import {chosenLayer, layerPanels, perOf} from "viewer/panels/layers";
import {muteTray} from "viewer/panels/mute_tray";
import {attentionPanel, scrubberPanel, stepBanner} from "viewer/panels/time";

const isDrawn = (now) => typeof now.input === "string";

// Without an input there is nothing to show: take the first of the list.
async function chooseFirst(now) {
  const {inputs} = await pageOf(now, 0),
    {page, input} = state.get();
  if (inputs.length && page === "spotlight" && input === null)
    state.set({input: inputs[0].index, start: 0}, {replace: true});
}

// The weights due to classes and tasks are summed up beforehand; to ask earlier would only be refused.
const prepared = ({mute}) =>
  mute.every((set) => Object.keys(set).every((name) => name === "label" || name === "task")) ? "mute" : null;

function plan(run, pending, parts) {
  const {shownInput, layers, charts, attention, scrubber, tray, banner} = parts;
  const spot = (now, layer) => {
    const input = inputOf(now);
    return input && ["spotlight", {input, layer, per: perOf(run, now)}];
  };
  const many =
    (name, ...targets) =>
    (argument) =>
      targets.forEach((target) => target[name](argument));
  pending.add({
    live: true,
    lane: "fast",
    what: "asking the model …",
    wanted: (now) => inputOf(now) && ["predict", {input: inputOf(now), step: now.step}],
    show: (answer) => {
      shownInput.show(answer);
      banner.show(answer);
    },
    busy: shownInput.busy,
    fail: shownInput.fail,
    clear: shownInput.clear,
  });
  // Everything else is about the finished run, also where the prediction is of an earlier step.
  const marked = many("predicted", charts, tray, scrubber, ...layers);
  pending.add({
    live: true,
    lane: "fast",
    wanted: (now) => inputOf(now) && ["predict", {input: inputOf(now)}],
    show: marked,
    clear: () => marked(null),
  });
  pending.add({
    live: true,
    what: "reading keys …",
    wanted: (now) => spot(now, chosenLayer(run, now)),
    show: (answer) => {
      charts.show(answer);
      attention.show(answer);
      layers.find(({layer}) => layer.name === answer.layer)?.show(answer);
    },
    busy: many("busy", charts, attention),
    fail: many("fail", charts, attention),
    clear: many("clear", charts, attention),
  });
  pending.add({
    live: true,
    lane: "fast",
    what: "taking slots away …",
    needs: prepared,
    wanted: (now) =>
      now.mute.length && !run.cannot.mute && inputOf(now) ? ["mute", {input: inputOf(now), mute: now.mute}] : null,
    show: tray.show,
    busy: tray.busy,
    fail: tray.fail,
    clear: tray.clear,
  });
  pending.add({
    lane: "fast",
    needs: prepared,
    wanted: (now) => (tray.isRetrained(now) && inputOf(now) ? ["retrained", {input: inputOf(now), mute: now.mute}] : null),
    show: tray.showAgain,
    fail: tray.failAgain,
  });
  for (const {layer, show: shown, busy, fail, clear} of layers) {
    pending.add({what: "reading keys …", wanted: (now) => spot(now, layer.name), show: shown, busy, fail, clear});
  }
  pending.add({
    what: "asking the model as it was …",
    wanted: (now) =>
      run.cannot.time || run.cannot.predict || !inputOf(now) ? null : ["history", {input: inputOf(now)}],
    show: scrubber.show,
    busy: scrubber.busy,
    fail: scrubber.fail,
    clear: scrubber.clear,
  });
}

/** A page that says what is missing: nothing of the run can be asked about. */
function explain(container, run) {
  container.replaceChildren(missingPanel(run).element);
  return {update: () => {}, close: () => {}};
}

export function show(container, run) {
  if (run.cannot.spotlight) return explain(container, run);
  const pending = new PendingRequests();
  const parts = {
    shownInput: inputPanel(run),
    layers: layerPanels(run),
    charts: chartPanels(run),
    attention: attentionPanel(run),
    scrubber: scrubberPanel(run),
    tray: muteTray(run, () => pending.update(state.get())),
    banner: stepBanner(run),
  };
  const {shownInput, layers, charts, attention, scrubber, tray, banner} = parts;
  container.replaceChildren(
    banner.element,
    el(
      "div",
      {class: "columns spotlight"},
      el("div", {class: "stack"}, shownInput.element),
      el(
        "div",
        {class: "stack layers"},
        layers.map(({element}) => element),
      ),
      el("div", {class: "stack"}, charts.elements),
    ),
    el("div", {class: "over-time"}, attention.element, scrubber.element),
    tray.element,
  );
  plan(run, pending, parts);
  return {
    update(now, before) {
      if (now.input === null) chooseFirst(now).catch((error) => shownInput.fail(error.message));
      for (const part of [shownInput, ...layers, attention, scrubber, tray, banner]) part.update(now);
      const drawing = isDrawn(now) && before !== null && isDrawn(before) && now.input !== before.input;
      pending.update(now, {drawing});
    },
    close: () => [pending.close(), shownInput.close(), tray.close()],
  };
}
