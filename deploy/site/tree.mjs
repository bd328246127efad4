// What the site knows of the repository: its pages, their titles and their order. All
// of it is read from the Markdown files, so that a new page needs no other change.

import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs'
import { posix } from 'node:path'
import MarkdownIt from 'markdown-it'

const source = 'https://github.com/flakelease/allocator'
const parser = new MarkdownIt({ html: true })

// text returns what a reader sees of an inline token.
const text = (inline) =>
  inline.children.map((t) => (t.type === 'softbreak' ? ' ' : t.type === 'html_inline' ? '' : t.content)).join('')

// read returns title, first sentence and links of the page in file.
function read(file, path) {
  const tokens = parser.parse(readFileSync(file, 'utf8'), {})
  const at = tokens.findIndex((t) => t.type === 'heading_open' && t.tag === 'h1')
  if (at < 0) throw new Error(`${path} has no title: begin it with a heading of level 1`)
  // Pages may begin with a picture. Decisions begin with a label: "Situation."
  const paragraphs = tokens.slice(at).flatMap((t, i, rest) => (t.type === 'paragraph_open' ? [text(rest[i + 1]).trim()] : []))
  const first = (paragraphs.find((p) => p !== '') ?? '').replace(/^Situation\.\s+/, '')
  const links = tokens.flatMap((t) => t.children ?? []).filter((t) => t.type === 'link_open').map((t) => t.attrGet('href'))
  return { path, title: text(tokens[at + 1]), first: first.match(/^.*?[.!?:](?=\s|$)/s)?.[0] ?? first, links }
}

// tree reads the pages below pages, which are copies of those of the repository at root.
export function tree(root, pages) {
  const all = new Map()
  for (const entry of readdirSync(pages, { recursive: true }).sort()) {
    const path = entry.split('\\').join('/')
    if (path.endsWith('.md')) all.set(path, read(`${pages}/${path}`, path))
  }

  // resolve returns where a link of a page leads: { page, hash } or { href }.
  function resolve(from, link) {
    if (/^([a-z]+:|#)/.test(link)) return { href: link }
    const [, file, hash] = link.match(/^([^#]*)(#.*)?$/)
    const path = posix.join(posix.dirname(from), decodeURI(file)).replace(/\/$/, '')
    const found = `${root}/${path}`
    if (path.startsWith('..') || !existsSync(found)) throw new Error(`${from} links to ${link}, which is not there`)
    if (all.has(path)) return { page: path, hash }
    if (!statSync(found).isDirectory()) return { href: `${source}/blob/main/${path}${hash ?? ''}` }
    // Of a directory: its README, or its first page.
    const page = all.has(`${path}/README.md`) ? `${path}/README.md` : [...all.keys()].find((p) => posix.dirname(p) === path)
    return page ? { page, hash } : { href: `${source}/tree/main/${path}` }
  }

  // The order within a group is that in which docs/README.md links to its pages; then by path.
  const order = new Map()
  for (const link of all.get('docs/README.md').links) {
    const { page } = resolve('docs/README.md', link)
    if (page && !order.has(page)) order.set(page, order.size)
  }
  const rank = (page) => order.get(page.path) ?? order.size

  // The groups are the directories of docs. Of the pages beside them, DESIGN.md explains and
  // the others are reports. Pages of other directories are in the last group.
  const groups = new Map(['Tutorial', 'How-to', 'Reference', 'Explanation', 'Decisions', 'Reports', 'Repository'].map((name) => [name, []]))
  for (const page of [...all.values()].sort((a, b) => rank(a) - rank(b))) {
    const [top, directory, file] = page.path.split('/')
    if (['README.md', 'docs/README.md'].includes(page.path)) continue
    let name = 'Repository'
    if (top === 'docs') name = file ? directory[0].toUpperCase() + directory.slice(1) : directory === 'DESIGN.md' ? 'Explanation' : 'Reports'
    if (!groups.has(name)) throw new Error(`${page.path} is in a directory that the site has no group for`)
    groups.get(name).push(page)
  }
  for (const [name, list] of groups) if (list.length === 0) groups.delete(name)

  return { source, all, groups, resolve }
}

// llms returns the list of all pages for programs that read Markdown: https://llmstxt.org
export function llms({ all, groups }) {
  const front = all.get('README.md')
  const line = (page) => `- [${page.title}](${page.path})${page.first && `: ${page.first.replace(/\s+/g, ' ')}`}`
  const sections = [...groups].map(([name, pages]) => `## ${name}\n\n${pages.map(line).join('\n')}\n`)
  return [`# ${front.title}\n`, `> ${front.first}\n`, [front, all.get('docs/README.md')].map(line).join('\n') + '\n', ...sections].join('\n')
}
