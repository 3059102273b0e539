// The page of a language model: a prompt, what is expected after each of its tokens, and the training text behind it.
//
//   const page = show(container, run);
//   page.update(state.get());
import {inReport} from "viewer/core/ask";
import {el} from "viewer/core/dom";
import {PendingRequests} from "viewer/core/pending_requests";
import {canonical, inputOf} from "viewer/core/requests";
import {state} from "viewer/core/state";
import {expectedPart} from "viewer/panels/expected";
import {passagesPart} from "viewer/panels/passages";
import {promptPart, promptsInReport} from "viewer/panels/prompt";
import {promptMuteTray} from "viewer/panels/prompt_mute_tray";

export function show(container, run) {
  const pending = new PendingRequests();
  const promptPanel = promptPart(run),
    expected = expectedPart(),
    passages = passagesPart(run),
    tray = promptMuteTray(run, () => pending.update(current));
  let current = null,
    read = null; // what the page is about, and the last input that the model could read
  const isRead = () => inReport || Boolean(run.cannot.predict) || read === canonical(current.input);
  pending.add({
    what: "Asking the model …",
    lane: "fast",
    busy: expected.busy,
    clear: expected.clear,
    wanted: ({input}) => input && ["predict", {input}],
    show(answer) {
      read = canonical(current.input);
      promptPanel.tokens(answer);
      expected.show(answer);
      pending.update(current);
    },
    fail(message) {
      expected.fail(message);
      if (read === null || JSON.parse(read).prompt !== current.prompt) promptPanel.tokens(null);
      if (!isRead()) for (const part of [passages, tray]) part.wait("Nothing to show for this prompt.");
    },
  });
  const later = (part) => pending.add({...part, wanted: (now) => (now.input && isRead() ? part.wanted(now) : null)});
  later({
    ...passages,
    show(answer) {
      passages.show(answer);
      tray.update(current); // which calls documents by titles that may only now be known
    },
  });
  later(tray);
  later(tray.again);

  const left = el("div", {class: "prompt-left"}, promptPanel.element, expected.element);
  container.replaceChildren(el("div", {class: "prompt-page"}, left, passages.element, tray.element));
  const update = (now) => {
    current = completed(now, run);
    for (const part of [promptPanel, passages, tray]) part.update(current);
    pending.update(current);
  };
  update(state.get());
  return {
    update,
    close() {
      promptPanel.close();
      tray.close();
      pending.close();
    },
  };
}

/** A state with what it leaves out: the prompt to begin with, the layer, the input that requests are about. */
function completed(now, run) {
  const prompt = now.prompt || (inReport ? [...promptsInReport().keys()][0] : run.example) || null;
  const lstm = run.layers.find(({kind}) => kind === "LSTM") ?? run.layers.at(-1);
  const layer = run.layers.some(({name}) => name === now.layer) ? now.layer : lstm.name;
  return {...now, prompt, layer, input: inputOf({...now, page: "prompt", prompt})};
}
