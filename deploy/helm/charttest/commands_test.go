package charttest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/pages"
	"helm.sh/helm/v3/pkg/strvals"
)

// printed command lines, by form. A line of a page in none of these forms fails the test: add its form, and what it
// names.
var (
	execIn      = regexp.MustCompile(`^kubectl exec (?:-it )?(\S+) -- /(\w+) (.+)$`)
	ofPod       = regexp.MustCompile(`^kubectl (?:logs|delete pod) ([a-z]\S*)$|^kubectl port-forward pod/(\S+) \d+$`)
	ofPods      = regexp.MustCompile(`^kubectl (?:delete pod|get pods) -l (\S+)$`)
	ofClaim     = regexp.MustCompile(`^kubectl delete pvc ([a-z0-9 -]+?)(?: --wait=false)?$`)
	ofSet       = regexp.MustCompile(`^kubectl (?:rollout status|scale) statefulset/(\S+)$`)
	ofService   = regexp.MustCompile(`^kubectl port-forward service/(\S+) (\d+)$`)
	ofSecret    = regexp.MustCompile(`^kubectl create secret generic [a-z-]+( --from-file=\S+)+$|^kubectl delete secret ids-allocator-etcd-\{[a-z,]+\}$`)
	ofRelease   = regexp.MustCompile(`^helm (?:install|upgrade) ids deploy/helm/allocator(?: --wait)?(?: -f values\.yaml)?((?: --set \S+)*)$`)
	ofNothing   = regexp.MustCompile(`^helm( (install|upgrade|uninstall|rollback|test|show)( --wait| ids| --logs| values deploy/helm/allocator)*)?$|^kubectl( logs -p)?$`)
	longFlag    = regexp.MustCompile(`--([a-z.-]+)`)
	printedSpan = regexp.MustCompile("`((?:kubectl|helm)(?: [^`]*)?)`")
)

// printedCommands returns the command lines of kubectl and helm in a page.
func printedCommands(page string) (out []string) {
	add := func(text string) {
		for _, line := range strings.Split(regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, ""), "\n") {
			line, _, _ = strings.Cut(strings.ReplaceAll(line, "NAME", "ids-allocator"), " #")
			for _, part := range regexp.MustCompile(`[|&;]+`).Split(line, -1) {
				part = strings.Join(strings.Fields(part), " ")
				if strings.HasPrefix(part, "kubectl") || strings.HasPrefix(part, "helm") {
					out = append(out, part)
				}
			}
		}
	}
	for _, b := range pages.Parse(page) {
		if b.Lang == "sh" {
			add(b.Text)
		}
	}
	for _, m := range printedSpan.FindAllStringSubmatch(page, -1) {
		add(m[1])
	}
	return out
}

// The commands for Kubernetes that pages print name pods, claims, Services, labels, values, programs and flags that
// the chart installs. chaos/kube does what they do in a Kubernetes.
func TestPrintedCommands(t *testing.T) {
	files, _ := filepath.Glob("../../../docs/*/*.md")
	all := map[string]string{}
	for _, file := range append(files, filepath.Join(chartDir, "README.md"), filepath.Join(chartDir, "UPGRADING.md")) {
		text, err := os.ReadFile(file)
		fatal.If(t, err)
		for _, line := range printedCommands(string(text)) {
			all[line] = filepath.Base(file)
		}
	}
	if len(all) < 15 {
		t.Errorf("found only %d commands", len(all))
	}
	const bundled = "{etcd: {endpoints: [], bundled: {enabled: true}}, gossip: {existingSecret: '', insecure: true}}"
	r := mustRender(t, with(t, bundled), install)
	cli := commandLine(t)
	for line, page := range all {
		if why := r.unknown(t, cli, bundled, line); why != "" {
			t.Errorf("%s: %s: %s", page, line, why)
		}
	}
	for _, line := range []string{
		"kubectl exec ids-allocator-9 -- /allocator status", "kubectl exec ids-allocator-0 -- /etcdctl member list",
		"kubectl exec ids-allocator-0 -- /allocator admin recover --conf x", "kubectl exec ids-allocator-0 -- /allocator frobnicate",
		"kubectl logs ids-0", "kubectl delete pvc state-ids-allocator-etcd-1", "kubectl rollout status statefulset/ids",
		"kubectl delete pod -l app.kubernetes.io/component=etc", "kubectl port-forward service/ids-allocator 8081",
		"helm upgrade ids deploy/helm/allocator --set etcd.bundle.enabled=true", "kubectl scale sts ids",
	} {
		if r.unknown(t, cli, bundled, line) == "" {
			t.Errorf("%s is taken for a command that works", line)
		}
	}
}

// unknown returns what a command line names that the rendered chart does not have; "": it has all.
func (r rendered) unknown(t *testing.T, cli, values, line string) string {
	t.Helper()
	// set returns the StatefulSet of a pod.
	set := func(pod string) *appsv1.StatefulSet {
		i := strings.LastIndex(pod, "-")
		n, err := strconv.Atoi(pod[i+1:])
		if err != nil || !r.has("StatefulSet/"+pod[:i]) {
			return nil
		}
		s := typed(t, r.find(t, "StatefulSet/"+pod[:i])).(*appsv1.StatefulSet)
		if s.Spec.Replicas != nil && n >= int(*s.Spec.Replicas) {
			return nil
		}
		return s
	}
	if m := execIn.FindStringSubmatch(line); m != nil {
		s := set(m[1])
		if s == nil {
			return "there is no such pod"
		}
		if m[2] != "allocator" {
			return "its image has no " + m[2]
		}
		if sub, ok := strings.CutPrefix(m[3], "etcd-pod "); ok { // It is hidden from the list of commands.
			text, err := os.ReadFile("../../../cmd/allocator/internal/etcdpod/snapshots.go")
			fatal.If(t, err)
			if strings.Contains(string(text), `Use:   "`+sub+`"`) {
				return ""
			}
		}
		words, _, _ := strings.Cut(m[3], " --")
		_, section, ok := strings.Cut(cli, "\n## allocator "+words+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		if !ok {
			return "there is no allocator " + words
		}
		for _, flag := range longFlag.FindAllStringSubmatch(m[3], -1) {
			if !regexp.MustCompile("--" + regexp.QuoteMeta(flag[1]) + "[^a-z.-]").MatchString(section) {
				return "there is no --" + flag[1]
			}
		}
		return ""
	}
	if m := ofPod.FindStringSubmatch(line); m != nil {
		if set(m[1]+m[2]) == nil {
			return "there is no such pod"
		}
		return ""
	}
	if m := ofClaim.FindStringSubmatch(line); m != nil {
		for _, claim := range strings.Fields(m[1]) {
			volume, pod, _ := strings.Cut(claim, "-")
			s := set(pod)
			if s == nil || len(s.Spec.VolumeClaimTemplates) == 0 || s.Spec.VolumeClaimTemplates[0].Name != volume {
				return "there is no such claim"
			}
		}
		return ""
	}
	if m := ofPods.FindStringSubmatch(line); m != nil {
		want, err := labels.Parse(m[1])
		if err != nil || !slices.ContainsFunc(pods(t, r.objects), func(p pod) bool { return want.Matches(labels.Set(p.meta.Labels)) }) {
			return "no pod has these labels"
		}
		return ""
	}
	if m := ofSet.FindStringSubmatch(line); m != nil {
		if !r.has("StatefulSet/" + m[1]) {
			return "there is no such StatefulSet"
		}
		return ""
	}
	if m := ofService.FindStringSubmatch(line); m != nil {
		if !r.has("Service/"+m[1]) || !strings.Contains(r.find(t, "Service/"+m[1]).text, "port: "+m[2]+"\n") {
			return "there is no such port"
		}
		return ""
	}
	if m := ofRelease.FindStringSubmatch(line); m != nil {
		v := with(t, values)
		for _, value := range strings.Split(m[1], " --set ")[1:] {
			if err := strvals.ParseInto(value, v); err != nil {
				return err.Error()
			}
		}
		if _, err := render(t, v, upgrade); err != nil {
			return err.Error()
		}
		return ""
	}
	if ofSecret.MatchString(line) || ofNothing.MatchString(line) {
		return ""
	}
	return "the test knows no such command: add its form"
}
