// The site of the Markdown files of the repository: make docs.

import { createHash } from 'node:crypto'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname, posix } from 'node:path'
import { defineConfig } from 'vitepress'
import { llms, tree } from '../tree.mjs'

const here = dirname(import.meta.dirname)
const pages = tree(`${here}/../..`, `${here}/src`)
const base = process.env.DOCS_BASE || '/'

// address returns where a page is: README.md is the page of its directory.
const address = (path) => '/' + path.replace(/README\.md$/, '').replace(/\.md$/, '.html')

// A heading has the fragment that GitHub gives it.
const slug = (heading) => heading.trim().toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-')

// GitHub drops other tags, so a placeholder such as <name> would not be seen.
const html = /^<(!--|\/?(a|br|img|kbd|sub|sup|picture|source|details|summary)\b)/

function markdown(md) {
  md.linkify.set({ fuzzyLink: false }) // GitHub makes no links of names such as main.go
  md.core.ruler.after('inline', 'repository', ({ tokens, env }) => {
    // A page that was renamed by rewrites is here by its new name.
    const from = env.relativePath.replace(/index\.md$/, 'README.md')
    for (const token of tokens.flatMap((t) => [t, ...(t.children ?? [])])) {
      // A block that is indented looks like one between fences.
      if (token.type === 'code_block') token.type = 'fence'
      // What overflows can be scrolled with the keyboard.
      if (token.type === 'table_open') token.attrSet('tabindex', '0')
      if (token.type === 'html_inline' && !html.test(token.content)) throw new Error(`${from}: GitHub shows no ${token.content}: put it into backticks`)
      if (token.type !== 'link_open') continue
      const { page, hash, href } = pages.resolve(from, token.attrGet('href'))
      token.attrSet('href', page ? posix.relative(posix.dirname(from), page).replace(/README\.md$/, 'index.md') + (hash ?? '') : href)
    }
  })
  // Braces are text, not templates.
  const plain = md.renderer.rules.text
  md.renderer.rules.text = (...args) => plain(...args).replaceAll('{{', '&#123;&#123;')
}

// searched is what the search finds a page by. Decisions are found in their list, so that pages that say how to do
// a thing are above those that say why it is so.
function searched(text, env, md) {
  return /^docs\/decisions\/(?!README|index|libraries)/.test(env.relativePath) ? '' : md.render(text, env)
}

// policy adds the Content-Security-Policy: files of this site, and its scripts within the page.
function policy(html) {
  const sums = [...html.matchAll(/<script(?![^>]*\ssrc=)[^>]*>([^]*?)<\/script>/g)].map(([, script]) => `'sha256-${createHash('sha256').update(script).digest('base64')}'`)
  const content = `default-src 'self'; script-src 'self' ${sums.join(' ')}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'`
  return html.replace('<head>', `<head>\n    <meta http-equiv="Content-Security-Policy" content="${content}">`)
}

export default defineConfig({
  title: pages.all.get('README.md').title,
  description: pages.all.get('README.md').first,
  lang: 'en-US',
  base,
  srcDir: 'src',
  outDir: '../docs',
  cacheDir: 'cache',
  appearance: 'force-auto', // pictures follow the browser, so pages do
  rewrites: { 'README.md': 'index.md', ':dir(.*)/README.md': ':dir/index.md' },
  markdown: {
    config: markdown,
    anchor: { slugify: slug },
    attrs: { disable: true }, // {braces} are text on GitHub
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    languageAlias: { console: 'shellsession' },
  },
  vite: { build: { assetsInlineLimit: 0, chunkSizeWarningLimit: 4096 } },
  head: [['link', { rel: 'icon', href: base + 'icon.svg' }]],
  themeConfig: {
    nav: [
      { text: pages.all.get('docs/README.md').title, link: '/docs/' },
      { text: 'See a cluster', link: '/play/', target: '_self' }, // the base is added to what ends as a page does
      { text: 'llms.txt', link: base + 'llms.txt', target: '_self' },
      { text: 'GitHub', link: pages.source },
    ],
    sidebar: [...pages.groups].map(([name, list]) => ({
      text: name,
      // A group that folds leads to its first page.
      ...(['Decisions', 'Reports', 'Repository'].includes(name) && { collapsed: true, link: address(list[0].path) }),
      items: list.map((page) => ({ text: page.title, link: address(page.path) })),
    })),
    notFound: { title: 'Not found', quote: 'No page has this address.', linkText: 'Front page', linkLabel: 'Front page' },
    outline: { level: [2, 4] },
    search: { provider: 'local', options: { _render: searched } },
    editLink: { pattern: `${pages.source}/blob/main/:path`, text: 'On GitHub' },
  },
  transformPageData: (page) => ({ description: pages.all.get(page.filePath).first }),
  transformHead: ({ pageData }) => [['link', { rel: 'alternate', type: 'text/markdown', href: base + pageData.filePath }]],
  transformHtml: policy,
  buildEnd({ outDir, srcDir }) {
    for (const path of pages.all.keys()) {
      mkdirSync(`${outDir}/${dirname(path)}`, { recursive: true })
      copyFileSync(`${srcDir}/${path}`, `${outDir}/${path}`)
    }
    writeFileSync(`${outDir}/llms.txt`, llms(pages))
    copyFileSync(`${here}/../../internal/server/console/static/icon.svg`, `${outDir}/icon.svg`)
  },
})
