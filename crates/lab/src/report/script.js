'use strict';
// Values under the pointer are read back from the paths, so the page holds no number twice. Plots with the same kind of horizontal
// axis are one group: they have one cursor, and zoom together.
const tip = document.getElementById('tip');
const chips = [...document.querySelectorAll('.chip')];
const names = chips.map(chip => chip.lastChild.textContent);

// A variant that is switched off is hidden everywhere.
for (const chip of chips) {
  if (chips.length === 1) break;
  chip.setAttribute('role', 'switch');
  chip.setAttribute('aria-checked', 'true');
  chip.tabIndex = 0;
  const toggle = () => {
    const off = chip.classList.toggle('off');
    chip.setAttribute('aria-checked', String(!off));
    for (const one of document.querySelectorAll('main [data-v="' + chip.dataset.v + '"]')) one.classList.toggle('off-variant', off);
  };
  // A variant that is pointed at stands out.
  const light = on => {
    document.querySelector('main').classList.toggle('dim', on);
    for (const one of document.querySelectorAll('.line[data-v="' + chip.dataset.v + '"]')) one.classList.toggle('lit', on);
  };
  chip.addEventListener('pointerenter', () => light(true));
  chip.addEventListener('pointerleave', () => light(false));
  chip.addEventListener('click', toggle);
  chip.addEventListener('keydown', event => {
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); toggle(); }
  });
}

function scale(text) {
  const [kind, ...rest] = text.split(' ');
  const [low, high, from, to] = rest.map(Number);
  const value = at => {
    const share = (at - from) / (to - from);
    return kind === 'log' ? low * Math.pow(high / low, share) : low + share * (high - low);
  };
  return { value, unit: rest[4], from, to };
}

const digits = value => String(Number(value.toPrecision(3)));
function shown(value, unit) {
  const size = Math.abs(value);
  const steps = unit === 'nanos'
    ? [[3.6e12, ' h'], [6e10, ' min'], [1e9, ' s'], [1e6, ' ms'], [1e3, ' µs'], [1, ' ns']]
    : [[1e9, ' G'], [1e6, ' M'], [1e4, ' k', 1e3], [0, '', 1]];
  if (unit === 'share') return digits(value * 100) + ' %';
  if (unit === 'tail') return 'p' + (100 * (1 - Math.pow(10, -value))).toFixed(Math.max(0, Math.ceil(value - 1)));
  const [least, name, divisor] = steps.find(step => size >= step[0]) || steps[steps.length - 1];
  return digits(value / (divisor || least)) + name;
}

// The height of a path at x, or nothing where it has a gap.
function height(path, x) {
  let at = null, before = null, y = null;
  for (const [, letter, first, second] of path.getAttribute('d').matchAll(/([MHVL])(-?[\d.]+)(?: (-?[\d.]+))?/g)) {
    if (letter === 'V') { y = +first; continue; }
    if (letter === 'M') { at = +first; y = +second; }
    else {
      before = at; at = +first;
      const old = y;
      if (letter === 'L') y = +second;
      if (Math.min(x, before) === before ? Math.max(x, at) === at : false)
        return old + (y - old) * (x - before) / ((at - before) || 1);
    }
  }
  return null;
}

const plots = [...document.querySelectorAll('svg.plot, svg.heat')].filter(svg => svg.dataset.x);
const kind = svg => svg.dataset.x.split(' ')[0] + ' ' + svg.dataset.x.split(' ')[5];
const isTime = svg => kind(svg) === 'lin nanos';
// What is seen of each timeline: from and to in its own values, or nothing for the whole.
let seen = null;

// The horizontal scale as it is now, and how it moves what was drawn.
function view(svg) {
  const whole = scale(svg.dataset.x);
  if (!seen || !isTime(svg)) return { ...whole, factor: 1, shift: 0 };
  const at = value => whole.from + (value - whole.value(whole.from)) / (whole.value(whole.to) - whole.value(whole.from)) * (whole.to - whole.from);
  const [left, right] = seen.map(at);
  const factor = (whole.to - whole.from) / (right - left);
  const shift = whole.from - left * factor;
  return { ...whole, factor, shift, value: x => whole.value((x - shift) / factor) };
}

// The place of a value, which may lie outside of what is seen.
function placeOf(svg, value) {
  const { from, to, value: at } = view(svg);
  const [low, high] = [at(from), at(to)];
  const share = svg.dataset.x.startsWith('log') ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return from + share * (to - from);
}

function make(parent, name, attributes) {
  const node = document.createElementNS(parent.namespaceURI, name);
  for (const key of Object.keys(attributes)) node.setAttribute(key, attributes[key]);
  parent.append(node);
  return node;
}

// Distance of ticks: 1, 2 or 5 times a power of ten.
function step(span, most) {
  const rough = span / most, power = Math.pow(10, Math.floor(Math.log10(rough)));
  return [1, 2, 5, 10].map(times => times * power).find(size => size >= rough);
}

const reset = document.createElement('button');
reset.textContent = 'Show the whole time';
reset.hidden = true;
reset.addEventListener('click', () => zoom(null));
document.getElementById('legend').append(reset);

function zoom(range) {
  seen = range;
  reset.hidden = !range;
  for (const svg of plots.filter(isTime)) {
    const { factor, shift, from, to, value } = view(svg);
    for (const moved of svg.querySelectorAll('.zoom')) moved.setAttribute('transform', 'matrix(' + [factor, 0, 0, 1, shift, 0] + ')');
    for (const ramp of svg.querySelectorAll('.ramp, .ramped')) ramp.style.display = range ? 'none' : '';
    const ticks = svg.querySelector('.across');
    ticks.style.display = range ? 'none' : '';
    for (const old of svg.querySelectorAll('.zoomed')) old.remove();
    if (!range) continue;
    const bottom = Number(ticks.querySelector('text').getAttribute('y'));
    const group = make(svg, 'g', { class: 'zoomed' });
    const [low, high] = [value(from), value(to)];
    const wide = step(high - low, 4);
    // All labels of an axis are in one unit, with the digits that tell neighbours apart.
    const [size, name] = [[3.6e12, 'h'], [6e10, 'min'], [1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']].find(unit => high >= unit[0]) || [1, 'ns'];
    for (let tick = Math.ceil(low / wide) * wide; tick <= high; tick += wide) {
      const x = placeOf(svg, tick);
      make(group, 'path', { class: 'axis', d: 'M' + x + ' ' + (bottom - 16) + 'V' + (bottom - 12) });
      const label = (tick / size).toFixed(Math.max(0, Math.ceil(-Math.log10(wide / size)))) + ' ' + name;
      make(group, 'text', { x: Math.min(x, to - 14), y: bottom, class: 'tick middle' }).textContent = label;
    }
  }
}

function local(svg, event) {
  const box = svg.getBoundingClientRect();
  return (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
}

// The same moment in every plot of the group.
function cursors(svg, value) {
  for (const other of plots) {
    if (kind(other) !== kind(svg)) continue;
    const { from, to } = view(other);
    const x = value === null ? NaN : placeOf(other, value);
    const field = other.querySelector('.field');
    const top = field ? Number(field.getAttribute('y')) : 0;
    const bottom = top + (field ? Number(field.getAttribute('height')) : 0);
    const inside = x >= from - 0.01 && x <= to + 0.01;
    other.querySelector('.cursor').setAttribute('d', inside ? 'M' + x.toFixed(2) + ' ' + top + 'V' + bottom : '');
  }
}

function point(event) {
  const svg = event.currentTarget;
  const across = view(svg);
  const x = local(svg, event);
  if (drag && drag.svg === svg) return stretch(x);
  if (x !== Math.min(Math.max(x, across.from), across.to)) return leave(event);
  cursors(svg, across.value(x));
  if (!svg.dataset.y) return;
  const up = scale(svg.dataset.y);
  const lines = [];
  for (const line of svg.querySelectorAll('.line:not(.off-variant)')) {
    for (const path of line.querySelectorAll('path:not(.band)')) {
      const y = height(path, (x - across.shift) / across.factor);
      if (y === null) continue;
      const name = [names[line.dataset.v], line.dataset.name].filter(Boolean).join(', ');
      lines.push([up.value(y), name, line.dataset.v]);
    }
  }
  lines.sort((a, b) => b[0] - a[0]);
  tip.replaceChildren();
  const row = (left, right, variant) => {
    const div = document.createElement('div');
    const label = document.createElement('span');
    if (variant !== undefined) {
      const dot = document.createElement('i');
      dot.className = 'dot c' + variant % 8;
      label.append(dot);
    }
    label.append(left);
    const value = document.createElement('b');
    value.textContent = right;
    div.append(label, value);
    tip.append(div);
  };
  row(across.unit === 'nanos' ? 'at' : '', shown(across.value(x), across.unit));
  for (const [value, name, variant] of lines.slice(0, 16)) row(name, shown(value, up.unit), variant);
  tip.hidden = false;
  const right = event.clientX + 14, wide = tip.offsetWidth;
  tip.style.left = (right + wide > innerWidth ? Math.max(4, event.clientX - wide - 14) : right) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)) + 'px';
}

function leave(event) {
  tip.hidden = true;
  cursors(event.currentTarget, null);
}

// Brush: what a drag spans is what all timelines show; a double click or Escape shows the whole again.
let drag = null;
function stretch(x) {
  const { from, to } = view(drag.svg);
  drag.to = Math.min(Math.max(x, from), to);
  drag.mark.setAttribute('x', Math.min(drag.from, drag.to));
  drag.mark.setAttribute('width', Math.abs(drag.to - drag.from));
}
function begin(event) {
  const svg = event.currentTarget, x = local(svg, event), { from, to } = view(svg);
  if (event.button !== 0 || x !== Math.min(Math.max(x, from), to)) return;
  const field = svg.querySelector('.field');
  const mark = make(svg, 'rect', { class: 'brush', x, width: 0, y: field.getAttribute('y'), height: field.getAttribute('height') });
  drag = { svg, from: x, to: x, mark };
  if (svg.setPointerCapture) svg.setPointerCapture(event.pointerId);
  event.preventDefault();
}
function end() {
  if (!drag) return;
  const { svg, from, to, mark } = drag;
  mark.remove();
  drag = null;
  if (Math.abs(to - from) < 4) return;
  const { value } = view(svg);
  zoom([value(Math.min(from, to)), value(Math.max(from, to))]);
}

for (const svg of plots) {
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerleave', leave);
  if (!isTime(svg)) continue;
  svg.classList.add('time');
  svg.addEventListener('pointerdown', begin);
  svg.addEventListener('pointerup', end);
  svg.addEventListener('pointercancel', end);
  svg.addEventListener('dblclick', () => zoom(null));
}
document.addEventListener('keydown', event => { if (event.key === 'Escape') zoom(null); });

// Tables: a click on the head of a column sorts by it, a second one the other way round; a button copies the rows as they stand.
const plain = cell => cell.firstElementChild && cell.querySelector('small') ? cell.textContent.slice(0, cell.textContent.length - cell.querySelector('small').textContent.length) : cell.textContent;
function key(cell) {
  const words = plain(cell).trim().replace(/,/g, '');
  const number = parseFloat(words);
  return words === '' || words === '-' || words === '–' ? null : /^[-+]?[\d.]/.test(words) && !isNaN(number) ? number : words;
}
function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a).localeCompare(String(b));
}
function copy(text) {
  if (navigator.clipboard) navigator.clipboard.writeText(text).catch(() => copyBySelection(text));
  else copyBySelection(text);
}
// Where a page may not write to the clipboard it may still copy what is selected.
function copyBySelection(text) {
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand('copy');
  area.remove();
}
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.querySelectorAll('thead th')], body = table.querySelector('tbody');
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const rows = [...body.rows].map(row => [key(row.cells[column]), row]);
      rows.sort((a, b) => a[0] === null || b[0] === null ? compare(a[0], b[0]) : (down ? -1 : 1) * compare(a[0], b[0]));
      body.append(...rows.map(row => row[1]));
    };
    head.addEventListener('click', sort);
    head.addEventListener('keydown', event => {
      if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); sort(); }
    });
  });
  const button = document.createElement('button');
  button.className = 'copy';
  button.textContent = 'Copy as TSV';
  button.addEventListener('click', () => {
    const line = row => [...row.cells].map(cell => {
      const small = cell.querySelector('small');
      return (plain(cell) + (small ? ' ' + small.textContent : '')).replace(/\s+/g, ' ').trim();
    }).join('\t');
    copy([...table.rows].map(line).join('\n') + '\n');
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy as TSV'; }, 1200);
  });
  table.parentElement.after(button);
}
