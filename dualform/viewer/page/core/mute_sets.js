// What is muted, as changes of the state: sets of slots that are switched on and off, and the way back.
//
//     toggleSet({label: [3]});     toggleId(4711);     undo();     clear();
import {inReport} from "viewer/core/ask";
import {canonical, MAX_MUTE_SETS} from "viewer/core/requests";
import {state} from "viewer/core/state";

const past = []; // what was muted before each change, for undo

function change(sets) {
  if (sets.length > MAX_MUTE_SETS) return;
  past.push(state.get().mute);
  state.set({mute: sets});
}

const isIds = (set) => Object.keys(set).join() === "id";

export function hasSet(sets, wanted) {
  const key = canonical(wanted);
  return sets.some((set) => canonical(set) === key);
}

export function toggleSet(wanted) {
  const {mute} = state.get();
  const key = canonical(wanted);
  const others = inReport ? [] : mute.filter((set) => canonical(set) !== key); // a report knows answers to one set at a time
  change(hasSet(mute, wanted) ? others : [...others, wanted]);
}

const RANGES = {steps: (row) => (row.visits > 1 ? null : row.step), positions: (row) => row.tags.position};

function fits(row, [name, values]) {
  if (!(name in RANGES)) return values.some((value) => String(value) === String(row.tags[name]));
  const at = RANGES[name](row) ?? null;
  return at !== null && values[0] <= at && at < values[1];
}

/** Whether a row of the spotlight is muted: one of the sets has all of it. */
export function isMuted(sets, row) {
  return sets.some((set) => Object.entries(set).every((entry) => fits(row, entry)));
}

/** Single training examples share one set, so that many of them stay one chip. */
export function toggleId(id) {
  const {mute} = state.get();
  const ids = mute.find(isIds)?.id ?? [];
  const next = ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id];
  change([...mute.filter((set) => !isIds(set)), ...(next.length ? [{id: next}] : [])]);
}

export function undo() {
  const {mute} = state.get();
  if (past.length) state.set({mute: past.pop()});
  else if (mute.length) state.set({mute: mute.slice(0, -1)});
}

export function clear() {
  if (state.get().mute.length) change([]);
}

export function canUndo() {
  return past.length > 0 || state.get().mute.length > 0;
}
