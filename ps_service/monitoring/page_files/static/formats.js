// How the page writes numbers: the same as page_formats.py.

export const NONE = "–";

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function rate(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  if (value < 9.995) return value.toFixed(2);
  return value < 99.95 ? value.toFixed(1) : grouped.format(value);
}

export function count(value) {
  return value === null || value === undefined ? NONE : grouped.format(value);
}

export function size(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 99.95 ? 0 : 1)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  for (const [unit, factor] of [["µs", 1e6], ["ms", 1e3], ["s", 1]]) {
    const scaled = value * factor;
    if (scaled < 999.5 || unit === "s") {
      const digits = unit === "µs" ? 0 : scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
      return `${scaled.toFixed(digits)} ${unit}`;
    }
  }
  return NONE;
}

export function span(value) {
  if (value === null || value === undefined) return NONE;
  const whole = Math.max(Math.trunc(value), 0);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.trunc(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.trunc(whole / 3600)} h ${Math.trunc((whole % 3600) / 60)} min`;
  return `${Math.trunc(whole / 86400)} d ${Math.trunc((whole % 86400) / 3600)} h`;
}

export function steps(value) {
  if (value === null || value === undefined) return NONE;
  return value.toFixed(Number.isInteger(value) || value >= 9.95 ? 0 : 1);
}

export function clock(unix) {
  const at = new Date(unix * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((each) => String(each).padStart(2, "0")).join(":");
}

export function plural(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

// A number that trainers have reported, such as a loss, in up to six digits: `0.412345`, `1,234.5`, `1.2e-7`.
export function value(number, digits = 6) {
  if (number === null || number === undefined || !Number.isFinite(number)) return NONE;
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return String(Number(number.toPrecision(4)).toExponential()).replace("e+", "e");
  return Number(number.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 9 });
}

// The same in up to four digits.
export function short(number) {
  return value(number, 4);
}
