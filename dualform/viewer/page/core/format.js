// Numbers as people read them.
//
//   number(-0.25)                                  // "−0.25"
const MINUS = "\u2212",
  NOTHING = "\u2013";

const known = (x) => x !== null && x !== undefined && !Number.isNaN(Number(x));
const signed = (x, text) => (x < 0 ? MINUS + text : text);
const grouped = (x) => x.toLocaleString("en-GB", {maximumFractionDigits: 0});

function scientific(size, digits) {
  const [mantissa, exponent] = size.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}e${exponent.replace("+", "")}`;
}

/** A number in a sentence or table: 12, 1,234, 3.1e-6, −0.25. Whole numbers keep all their digits. */
export function number(x) {
  if (!known(x)) return NOTHING;
  const value = Number(x),
    size = Math.abs(value);
  if (size === Infinity) return signed(value, "∞");
  if (Number.isInteger(value) && size < 1e12) return signed(value, grouped(size));
  if (size >= 1e6 || size < 1e-3) return signed(value, size >= 1e6 && size < 1e12 ? short(size) : scientific(size, 2));
  if (size >= 1000) return signed(value, grouped(size));
  return signed(value, String(Number(size.toPrecision(3))));
}

/** A number on an axis: 250, 100k, 2.5M, 2e-6. */
export function short(x) {
  if (!known(x)) return NOTHING;
  const value = Number(x),
    size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e15 || size < 1e-3) return signed(value, scientific(size, 2));
  const [unit, letter] = [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
    [1, ""],
  ].find(([u]) => size >= u * 0.9995) ?? [1, ""];
  return signed(value, Number((size / unit).toPrecision(3)) + letter);
}

/** A share as per cent: "97.3%", "<0.1%". */
export function percent(p) {
  if (!known(p)) return NOTHING;
  const hundred = Math.abs(Number(p)) * 100;
  if (hundred > 0 && hundred < 0.1) return p < 0 ? `>${MINUS}0.1%` : "<0.1%";
  if (hundred < 100 && hundred > 99.95) return p < 0 ? `<${MINUS}99.9%` : ">99.9%";
  return signed(Number(p), `${Number(hundred.toFixed(1))}%`);
}

/** A time, roughly: "2 s", "3 min", "1.5 h". */
export function duration(seconds) {
  if (!known(seconds)) return NOTHING;
  if (seconds < 89.5) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 89.5 * 60) return `${Math.round(seconds / 60)} min`;
  return `${Number((seconds / 3600).toFixed(1))} h`;
}

/** A size on disk: "1.2 GB". */
export function bytes(n) {
  if (!known(n)) return NOTHING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = Number(n),
    unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 99.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}
