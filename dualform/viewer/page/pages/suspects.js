// Training examples whose label is probably wrong, and a tray of those that are muted, on their way to the spotlight.
import {PendingRequests} from "viewer/core/pending_requests";
import {MAX_SUSPECTS, SUSPECTS_AT_ONCE} from "viewer/core/requests";
import {suspectsPanel, suspectsTray} from "viewer/panels/suspects";

/** How many examples a state lists. */
const countOf = ({top}) => Math.min(Math.max(top ?? SUSPECTS_AT_ONCE, 1), MAX_SUSPECTS);

export function show(container, run) {
  const pending = new PendingRequests(),
    list = suspectsPanel(run),
    tray = suspectsTray(run);
  container.replaceChildren(list.element, ...(run.cannot.suspects ? [] : [tray.element]));
  pending.add({
    ...list,
    what: "going through the visits …",
    wanted: (now) => (run.cannot.suspects ? null : ["suspects", {count: countOf(now)}]),
  });
  return {
    update(now) {
      list.update(now);
      tray.update(now);
      pending.update(now);
    },
    close: () => pending.close(),
  };
}
