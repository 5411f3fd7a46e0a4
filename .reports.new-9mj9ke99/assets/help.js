"use strict";
// The help of all pages, before report.js. It is of no use without scripts, so pages do not carry it.
(() => {
  const dialog = document.createElement("dialog");
  dialog.id = "help";
  dialog.setAttribute("aria-labelledby", "help-title");
  dialog.innerHTML = `
<h2 id="help-title">Keys and queries</h2>
<div class="help-columns" lang="en">
<table class="keys"><caption>Keys</caption><tbody>
<tr><th scope="row"><kbd>/</kbd></th><td>filter</td></tr>
<tr><th scope="row"><kbd>←</kbd> <kbd>↑</kbd> <kbd>↓</kbd> <kbd>→</kbd></th><td>move in the grid</td></tr>
<tr><th scope="row"><kbd>Home</kbd> <kbd>End</kbd></th><td>first, last in the row</td></tr>
<tr><th scope="row"><kbd>Enter</kbd></th><td>open the check</td></tr>
<tr><th scope="row"><kbd>Esc</kbd></th><td>clear the filter, close this</td></tr>
<tr><th scope="row"><kbd>t</kbd></th><td>light, dark, system</td></tr>
<tr><th scope="row"><kbd>?</kbd></th><td>this help</td></tr>
</tbody></table>
<table class="keys"><caption>Queries</caption><tbody>
<tr><th scope="row"><code>verl:0.9 &amp; !pass</code></th><td>verl 0.9 and 0.9.x, checks that did not pass</td></tr>
<tr><th scope="row"><code>verl&gt;=0.8</code></th><td>compare versions: <code>= &lt; &lt;= &gt; &gt;=</code></td></tr>
<tr><th scope="row"><code>evidence:simulated</code></th><td>also <code>hardware cpu static none</code></td></tr>
<tr><th scope="row"><code>status:fail</code></th><td>also <code>pass known unexpected error stale claimed blocked not-run unsupported inconclusive</code></td></tr>
<tr><th scope="row"><code>check:loss | tier:static</code></th><td>either; <code>( )</code> group</td></tr>
<tr><th scope="row"><code>new</code></th><td>changed since the run before: <code>broken fixed lost</code></td></tr>
<tr><th scope="row"><code>gspo qwen</code></th><td>any words of title, id, versions</td></tr>
</tbody></table>
</div>
<div class="help-columns" lang="zh-CN" hidden>
<table class="keys"><caption>按键</caption><tbody>
<tr><th scope="row"><kbd>/</kbd></th><td>筛选</td></tr>
<tr><th scope="row"><kbd>←</kbd> <kbd>↑</kbd> <kbd>↓</kbd> <kbd>→</kbd></th><td>在表格中移动</td></tr>
<tr><th scope="row"><kbd>Home</kbd> <kbd>End</kbd></th><td>行首，行尾</td></tr>
<tr><th scope="row"><kbd>Enter</kbd></th><td>打开检查</td></tr>
<tr><th scope="row"><kbd>Esc</kbd></th><td>清除筛选，关闭本窗口</td></tr>
<tr><th scope="row"><kbd>t</kbd></th><td>浅色、深色、跟随系统</td></tr>
<tr><th scope="row"><kbd>?</kbd></th><td>本帮助</td></tr>
</tbody></table>
<table class="keys"><caption>查询</caption><tbody>
<tr><th scope="row"><code>verl:0.9 &amp; !pass</code></th><td>verl 0.9 及 0.9.x 中没有通过的检查</td></tr>
<tr><th scope="row"><code>verl&gt;=0.8</code></th><td>比较版本：<code>= &lt; &lt;= &gt; &gt;=</code></td></tr>
<tr><th scope="row"><code>evidence:simulated</code></th><td>证据种类，还有 <code>hardware cpu static none</code></td></tr>
<tr><th scope="row"><code>status:fail</code></th><td>结论，还有 <code>pass known unexpected error stale claimed blocked not-run unsupported inconclusive</code></td></tr>
<tr><th scope="row"><code>check:loss | tier:static</code></th><td>二者之一；<code>( )</code> 用于分组</td></tr>
<tr><th scope="row"><code>new</code></th><td>与上次运行不同：<code>broken fixed lost</code></td></tr>
<tr><th scope="row"><code>gspo qwen</code></th><td>标题、编号、版本中的任意词</td></tr>
</tbody></table>
</div>
<form method="dialog"><button class="quiet">close · 关闭</button></form>`;
  document.body.append(dialog);
})();
