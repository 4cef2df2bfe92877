// What a page in the browser is asked. Each function returns what is wrong; nothing wrong is an empty answer.
({
  // Resolves once MathJax has set every formula of the page.
  async settled() {
    if (!document.querySelector('.math')) return;
    for (let i = 0; i < 300 && !(window.MathJax && MathJax.startup && MathJax.startup.promise); i++)
      await new Promise(done => setTimeout(done, 50));
    await MathJax.startup.promise;
  },

  // Formulas that were left raw, that MathJax refused, or that hold a macro it does not know (set in red).
  maths() {
    const formulas = [...document.querySelectorAll('article .math')];
    const set = window.MathJax ? [...MathJax.startup.document.math] : [];
    const source = e => (set.find(m => m.typesetRoot && m.typesetRoot.contains(e)) || { math: e.textContent }).math;
    const red = e => /\bred\b/.test(e.getAttribute('style') || '');
    return [
      ...formulas.filter(e => !e.querySelector('mjx-container')).map(e => 'raw: ' + e.textContent.slice(0, 60)),
      ...[...document.querySelectorAll('mjx-merror')].map(e => 'refused: ' + source(e)),
      ...[...document.querySelectorAll('mjx-mtext, mjx-mrow')].filter(red).map(e => 'unknown: ' + e.outerHTML.slice(0, 200)),
    ];
  },

  // What makes the page wider than the window.
  overflow() {
    const limit = window.innerWidth, width = document.scrollingElement.scrollWidth;
    if (width <= limit) return [];
    // What stands in a box that scrolls or clips by itself does not widen the page.
    const contained = e => e && e !== document.body && (getComputedStyle(e).overflowX !== 'visible' || contained(e.parentElement));
    const wide = [...document.querySelectorAll('body *')]
      .filter(e => e.getBoundingClientRect().right > limit + 0.5 && !contained(e));
    return [`page ${width} > ${limit}`, ...wide.slice(0, 5).map(e => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 60)}`)];
  },

  // Images that are neither hidden on purpose nor to be seen.
  images() {
    const hidden = '.toggle-hidden, .toggle-details:not([open]), details:not([open]), .only-light, .only-dark, [hidden]';
    const due = [...document.querySelectorAll('article img')].filter(e => !e.closest(hidden) && e.loading !== 'lazy');
    return due.filter(e => !(e.complete && e.naturalWidth && e.getBoundingClientRect().width)).map(e => e.src);
  },

  // Visible text whose contrast with what lies behind it is below `least`: element -> [ratio, text].
  contrast(least) {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = colour => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      return [r, g, b, a / 255];
    };
    const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3]));
    const linear = v => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const luminance = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
    const background = e => {
      const layers = [];
      for (; e; e = e.parentElement) {
        const colour = rgba(getComputedStyle(e).backgroundColor);
        if (colour[3] > 0) layers.push(colour);
        if (colour[3] === 1) break;
      }
      return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
    };
    const skipped = '.headerlink, .visually-hidden, .sr-only, mjx-assistive-mml, script, style, noscript, button';
    const parts = 'article *, .bd-sidebar-primary *, .bd-sidebar-secondary *';
    const poor = {};
    for (const e of document.querySelectorAll(parts)) {
      const own = [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
      const seen = e.checkVisibility({ opacityProperty: true, visibilityProperty: true });
      if (!own.length || !seen || e.closest(skipped)) continue;
      const under = background(e);
      const a = luminance(over(rgba(getComputedStyle(e).color), under)), b = luminance(under);
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < least) poor[e.tagName + '.' + e.className] = [ratio.toFixed(2), own[0].textContent.trim().slice(0, 40)];
    }
    return poor;
  },
})
