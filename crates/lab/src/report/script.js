'use strict';
// Values under the pointer are read back from the paths, so the page holds no number twice.
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

function point(event) {
  const svg = event.currentTarget;
  const box = svg.getBoundingClientRect();
  const across = scale(svg.dataset.x), up = scale(svg.dataset.y);
  const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
  const cursor = svg.querySelector('.cursor');
  if (x !== Math.min(Math.max(x, across.from), across.to)) return leave(event);
  cursor.setAttribute('d', 'M' + x + ' ' + up.to + 'V' + up.from);
  const lines = [];
  for (const line of svg.querySelectorAll('.line:not(.off-variant)')) {
    for (const path of line.querySelectorAll('path:not(.band)')) {
      const y = height(path, x);
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
  event.currentTarget.querySelector('.cursor').setAttribute('d', '');
}

for (const svg of document.querySelectorAll('svg.plot')) {
  svg.addEventListener('pointermove', point);
  svg.addEventListener('pointerleave', leave);
}
