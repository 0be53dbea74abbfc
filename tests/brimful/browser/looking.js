// Looks at a page as a reader would: an object of functions, evaluated in the page by the tests.
({
  parse(text) {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return { rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1 };
  },
  over(top, below) {
    return top.rgb.map((value, i) => value * top.alpha + below[i] * (1 - top.alpha));
  },
  // Relative luminance and contrast ratio: WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
  luminance(rgb) {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  },
  ratio(a, b) {
    const [high, low] = [this.luminance(a), this.luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  },
  ground(element) {
    const above = [];
    for (let at = element; at; at = at.parentElement) above.push(this.parse(getComputedStyle(at).backgroundColor));
    return above.reverse().reduce((below, top) => this.over(top, below), [255, 255, 255]);
  },
  visible(element) {
    const box = element.getBoundingClientRect();
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && box.width > 1 && box.height > 1;
  },
  // Every piece of visible text: what it says, and its contrast with what lies behind it.
  texts() {
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
      const node = walk.currentNode, parent = node.parentElement;
      if (!node.data.trim() || !this.visible(parent) || parent.closest("script,style,title")) continue;
      const style = getComputedStyle(parent), svg = parent.closest("svg");
      if (svg && style.stroke !== "none") continue; // the halo behind a label
      const ground = this.ground(svg || parent);
      const color = this.over(this.parse(svg ? style.fill : style.color), ground);
      const size = parseFloat(style.fontSize), bold = Number(style.fontWeight) >= 700;
      const needed = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
      found.push({ text: node.data.trim().slice(0, 60), ratio: this.ratio(color, ground), needed });
    }
    return found;
  },
  weak() { return this.texts().filter((one) => one.ratio < one.needed); },
  // Marks of the charts that are shown: curves and points, with their size on the screen and contrast with the paper.
  marks() {
    const paper = this.ground(document.body);
    return [...document.querySelectorAll(".chart svg path[stroke], .chart svg line[stroke]")]
      .filter((e) => e.closest(".chart").checkVisibility())
      .map((e) => {
        const box = e.getBoundingClientRect(), style = getComputedStyle(e);
        return { width: box.width, height: box.height, title: (e.querySelector("title") || {}).textContent || "",
                 stroke: style.stroke, ratio: style.stroke === "none" ? 0 : this.ratio(this.parse(style.stroke).rgb, paper) };
      });
  },
  charts() {
    return [...document.querySelectorAll(".chart svg")].filter((e) => e.checkVisibility())
      .map((e) => { const b = e.getBoundingClientRect(); return { width: b.width, height: b.height, right: b.right }; });
  },
  // Tables with columns beyond their edge and nothing that shows it: a shadow stays there while what scrolls moves.
  hidden() {
    return [...document.querySelectorAll(".scroll")].filter((e) => this.visible(e) && e.scrollWidth > e.clientWidth + 1)
      .filter((e) => {
        const style = getComputedStyle(e);
        return !(style.backgroundImage.includes("gradient") && style.backgroundAttachment.includes("scroll"));
      }).map((e) => e.textContent.trim().slice(0, 60));
  },
  overflow() {
    const room = document.documentElement.clientWidth;
    const within = (e) => e.closest(".scroll") && e.closest(".scroll") !== e || e.closest("details pre") || e.closest("svg");
    const out = [...document.body.querySelectorAll("*")].filter((e) => !within(e) && this.visible(e))
      .filter((e) => e.getBoundingClientRect().right > room + 0.5).map((e) => e.tagName + "." + e.className);
    return { page: document.documentElement.scrollWidth - room, out };
  },
})
