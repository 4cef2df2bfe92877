// The duality explorer: one windowed softmax read, drawn along either axis of a small grid of states.
// No dependency. The data file sets window.T2ExplorerData before this file runs (see tools/make_explorer.py).
(function () {
  "use strict";

  // ---- the computation -----------------------------------------------------------------------------------

  /** Inner product of two states on one line of the grid; `line` holds a lower triangle, row by row. */
  function product(line, i, j) {
    const [high, low] = i >= j ? [i, j] : [j, i];
    return line[(high * (high + 1)) / 2 + low];
  }

  /**
   * The weights of one read: softmax over the last `window` entries of the chosen axis, self included.
   * axis "tokens" reads along the row of `level`, axis "depth" up the column of `token`.
   * keys "raw" compares the states as they are, "normalised" divides query and keys by their RMS first.
   */
  function weights(data, axis, level, token, window, keys) {
    const line = axis === "tokens" ? data.rows[level] : data.columns[token];
    const place = axis === "tokens" ? token : level;
    const rms = (i) => (keys === "raw" ? 1 : Math.sqrt(product(line, i, i) / data.width + data.eps));
    const positions = [];
    for (let j = Math.max(0, place - window + 1); j <= place; j++) positions.push(j);
    const scores = positions.map((j) => product(line, place, j) / (rms(place) * rms(j)) / Math.sqrt(data.width));
    const largest = Math.max(...scores);
    const unnormalised = scores.map((score) => Math.exp(score - largest));
    const total = unnormalised.reduce((sum, value) => sum + value, 0);
    return { positions, weights: unnormalised.map((value) => value / total) };
  }

  window.T2Explorer = { weights };

  // ---- the words -----------------------------------------------------------------------------------------

  function list(items) {
    if (items.length < 3) return items.join(" and ");
    return items.slice(0, -1).join(", ") + " and " + items[items.length - 1];
  }

  function tokenName(data, token) {
    return `token ${token} (“${data.labels[token]}”)`;
  }

  function words(data, state, read) {
    const here = `${tokenName(data, state.token)} at level ${state.level}`;
    const along = state.axis === "tokens";
    const earlier = read.positions.slice(0, -1);
    if (earlier.length === 0) return `Axis ${state.axis}: ${here} reads itself only, with weight 1.`;
    const names = along ? `tokens ${list(earlier)} of its row` : `itself at levels ${list(earlier)}`;
    const best = read.weights.indexOf(Math.max(...read.weights));
    const most = read.positions[best];
    const self = best === read.positions.length - 1;
    const target = self ? "its own present state" : along ? tokenName(data, most) : `level ${most}`;
    return `Axis ${state.axis}: ${here} reads ${names}, and its own present state. Most weight, ${read.weights[best].toFixed(2)}, goes to ${target}.`;
  }

  function call(data, state) {
    const x = state.keys === "raw" ? "H" : "N";
    const lines = state.keys === "raw" ? [] : ["N = H / rms(H)            # state by state"];
    let name = x;
    let axis = state.axis === "tokens" ? 1 : 0;
    if (state.swapped) {
      lines.push(`P = ${x}.swapaxes(0, 1)      # Π: (T, L+1, d)`);
      name = "P";
      axis = 1 - axis;
    }
    lines.push(`short_swa(${name}, ${name}, v, window=${state.window}, axis=${axis})`);
    return lines.join("\n");
  }

  // ---- the page ------------------------------------------------------------------------------------------

  const SVG = "http://www.w3.org/2000/svg";
  const CELL = 34;
  const GAP = 3;
  const LEFT = 52;
  const BOTTOM = 58;

  function svg(name, attributes, parent) {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(node);
    return node;
  }

  function start(root, data) {
    const find = (name) => root.querySelector(`[data-explorer="${name}"]`);
    const state = { axis: "depth", level: 5, token: data.start, window: 4, keys: "normalised", swapped: false };
    const grid = find("grid");
    let cells = [];

    const longest = () => (state.axis === "tokens" ? data.labels.length : data.levels);
    const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

    /** Draw the empty grid: once at the start, and when the picture is swapped. */
    function drawGrid() {
      const columns = state.swapped ? data.levels : data.labels.length;
      const rows = state.swapped ? data.labels.length : data.levels;
      const width = LEFT + columns * CELL;
      const height = rows * CELL + BOTTOM;
      grid.replaceChildren();
      const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, grid);
      picture.style.maxWidth = `${width}px`;
      cells = [];
      for (let level = 0; level < data.levels; level++) {
        cells.push([]);
        for (let token = 0; token < data.labels.length; token++) {
          const column = state.swapped ? level : token;
          const row = state.swapped ? token : level;
          const box = { x: LEFT + column * CELL, y: (rows - 1 - row) * CELL, width: CELL - GAP, height: CELL - GAP, rx: 5 };
          const cell = svg("rect", { ...box, class: "t2-cell" }, picture);
          cell.addEventListener("pointerdown", () => change({ level, token }));
          cells[level].push(cell);
        }
      }
      const name = (text, x, y, kind) => {
        svg("text", { x, y, class: `t2-label ${kind || ""}`, "text-anchor": "middle" }, picture).textContent = text;
      };
      const middle = (CELL - GAP) / 2;
      for (let i = 0; i < columns; i++) {
        const text = state.swapped ? i : data.labels[i];
        name(text, LEFT + i * CELL + middle, rows * CELL + 18, state.swapped ? "" : "t2-byte");
      }
      for (let i = 0; i < rows; i++) {
        const text = state.swapped ? data.labels[i] : i;
        name(text, LEFT - 14, (rows - 1 - i) * CELL + middle + 5, state.swapped ? "t2-byte" : "");
      }
      const across = state.swapped ? "level" : "token";
      const up = state.swapped ? "token" : "level";
      name(`${across} →`, LEFT + (columns * CELL) / 2, rows * CELL + 46);
      const y = (rows * CELL) / 2;
      svg("text", { x: 16, y, class: "t2-label", "text-anchor": "middle", transform: `rotate(-90 16 ${y})` }, picture).textContent = `${up} →`;
    }

    /** Show the present choice: cells, bars, words, call and the controls themselves. */
    function show() {
      state.window = clamp(state.window, 1, longest());
      const read = weights(data, state.axis, state.level, state.token, state.window, state.keys);
      root.dataset.axis = state.axis;
      for (const row of cells) for (const cell of row) { cell.setAttribute("class", "t2-cell"); cell.style.fillOpacity = ""; }
      read.positions.forEach((position, i) => {
        const cell = state.axis === "tokens" ? cells[state.level][position] : cells[position][state.token];
        cell.setAttribute("class", "t2-cell t2-read");
        cell.style.fillOpacity = (0.1 + 0.9 * read.weights[i]).toFixed(3);
      });
      cells[state.level][state.token].classList.add("t2-query");

      const bars = find("bars");
      bars.replaceChildren();
      read.positions.forEach((position, i) => {
        const row = document.createElement("li");
        const label = document.createElement("span");
        label.textContent = state.axis === "tokens" ? `${position} ${data.labels[position]}` : `level ${position}`;
        const bar = document.createElement("span");
        bar.className = "t2-bar";
        bar.style.setProperty("--weight", read.weights[i]);
        const number = document.createElement("span");
        number.textContent = read.weights[i].toFixed(4);
        row.append(label, bar, number);
        bars.append(row);
      });

      find("words").textContent = words(data, state, read) + (state.swapped ? " The picture is swapped: the same weights, drawn along the other direction." : "");
      find("call").textContent = call(data, state);
      find("level").value = state.level;
      find("token").value = state.token;
      find("window").max = longest();
      find("window").value = state.window;
      find("level-value").textContent = state.level;
      find("token-value").textContent = `${state.token} ${data.labels[state.token]}`;
      find("window-value").textContent = state.window;
      find("swapped").checked = state.swapped;
      for (const input of root.querySelectorAll('input[type="radio"]')) {
        input.checked = input.value === state[input.dataset.sets];
      }
    }

    function change(part) {
      const swap = "swapped" in part && part.swapped !== state.swapped;
      Object.assign(state, part);
      state.level = clamp(state.level, 0, data.levels - 1);
      state.token = clamp(state.token, 0, data.labels.length - 1);
      if (swap) drawGrid();
      show();
    }

    /** One step in the picture, whatever its axes are at the moment. */
    function step(across, up) {
      change(state.swapped ? { level: state.level + across, token: state.token + up } : { level: state.level + up, token: state.token + across });
    }

    const keysOf = {
      ArrowRight: () => step(1, 0),
      ArrowLeft: () => step(-1, 0),
      ArrowUp: () => step(0, 1),
      ArrowDown: () => step(0, -1),
      "+": () => change({ window: state.window + 1 }),
      "=": () => change({ window: state.window + 1 }),
      "-": () => change({ window: state.window - 1 }),
      x: () => change({ axis: state.axis === "tokens" ? "depth" : "tokens" }),
      s: () => change({ swapped: !state.swapped }),
      n: () => change({ keys: state.keys === "raw" ? "normalised" : "raw" }),
    };
    grid.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keysOf)) return;
      event.preventDefault();
      event.stopPropagation();
      keysOf[event.key]();
    });
    for (const name of ["level", "token", "window"]) {
      find(name).addEventListener("input", (event) => change({ [name]: Number(event.target.value) }));
    }
    for (const input of root.querySelectorAll('input[type="radio"]')) {
      input.addEventListener("change", () => change({ [input.dataset.sets]: input.value }));
    }
    find("swapped").addEventListener("change", (event) => change({ swapped: event.target.checked }));

    find("level").max = data.levels - 1;
    find("token").max = data.labels.length - 1;
    drawGrid();
    show();
    root.hidden = false;
    for (const still of document.querySelectorAll(".t2-still")) still.hidden = true;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("t2-explorer");
    if (root && window.T2ExplorerData) start(root, window.T2ExplorerData);
  });
})();
