import { useData, withBase } from 'vitepress'
import theme from 'vitepress/theme-without-fonts'
import { h } from 'vue'
import './style.css'

// Each page links to the Markdown file that it was made of.
function Markdown() {
  const { page } = useData()
  return h('a', { class: 'markdown', href: withBase('/' + page.value.filePath), target: '_self' }, 'Markdown')
}

export default {
  extends: theme,
  Layout: () => h(theme.Layout, null, { 'doc-footer-before': () => h(Markdown) }),
}
