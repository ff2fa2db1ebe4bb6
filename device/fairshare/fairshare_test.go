// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

// Adaptive Fair-Share, §3.5, figure 11: the terms, Set_i, and the shares on a card.
func TestDecide_figure11(t *testing.T) {
	in := Input{MemoryMiB: 12288, Groups: figure11(), Coefficients: Coefficients{Scheme: Equal}, Params: DefaultParams()}
	must.NoError(t, in.Validate())
	out := Decide(in)
	const quarter, third = 1.0 / 4, 1.0 / 3
	sets := []float64{
		quarter*12/30 + quarter*1/2 + quarter*1/6 + quarter*2/6,
		quarter*5/30 + quarter*1/2 + quarter*2/6 + quarter*3/6,
		third*8/30 + third*1/2 + third*1/6,
		third*2/30 + third*1/2 + third*1/6,
		quarter*3/30 + quarter*1/2 + quarter*3/6 + quarter*1/6,
	}
	total := sets[0] + sets[1] + sets[2] + sets[3] + sets[4]
	memory := 0
	for i, g := range out.Groups {
		must.InDelta(t, []float64{0.35, 0.375, 0.31111, 0.24444, 0.31667}[i], g.Set, 5e-6)
		must.InDelta(t, sets[i], g.Set, 1e-15)
		must.InDelta(t, sets[i]/total, g.Share, 1e-15)
		must.InDelta(t, sets[i]/total*12288, float64(g.MemoryMiB), 1)
		must.Eq(t, RuleEqual, g.Rule)
		memory += g.MemoryMiB
	}
	must.Eq(t, 12288, memory)
	must.Eq(t, []Term{
		{Count, quarter, 12, 30}, {"application", quarter, 1, 2}, {"size", quarter, 1, 6}, {"user", quarter, 2, 6},
	}, out.Groups[0].Terms)
	must.Eq(t, []Term{{Count, third, 8, 30}, {"application", third, 1, 2}, {"user", third, 1, 6}}, out.Groups[2].Terms)
	must.Eq(t, "each of its 4 properties has the same weight: Set = 0.25·12/30 (count) + 0.25·1/2 (application) + 0.25·1/6 (size) + 0.25·2/6 (user) = 0.35, of Σ Set 1.597; nothing on the card: 2693 MiB",
		out.Groups[0].Why)

	in.Coefficients = Coefficients{By: map[string]float64{Count: 0.25, "application": 0.25, "size": 0.25, "user": 0.25}}
	for _, g := range in.Groups {
		in.Containers = append(in.Containers, Container{ID: "of-" + g.ID, Group: g.ID})
	}
	must.NoError(t, in.Validate())
	with := Decide(in)
	for i, c := range with.Containers {
		must.InDelta(t, sets[i], with.Groups[i].Set, 1e-15)
		must.Eq(t, out.Groups[i].MemoryMiB, c.ShareMiB)
		must.Eq(t, RuleWeight, c.Rule)
		must.Eq(t, RuleGiven, with.Groups[i].Rule)
	}

	in.Coefficients = Coefficients{Scheme: CountOnly}
	for i, g := range Decide(in).Groups {
		must.InDelta(t, float64(in.Groups[i].Jobs)/30, g.Share, 1e-15)
		must.Eq(t, RuleCount, g.Rule)
	}
}

func two(containers ...Container) Input {
	return Input{
		MemoryMiB:    1000,
		Groups:       []Group{{ID: "g", Jobs: 1}, {ID: "h", Jobs: 1}},
		Coefficients: Coefficients{Scheme: CountOnly},
		Containers:   containers, Params: DefaultParams(),
	}
}

func (in Input) mode(m Mode) Input {
	in.Mode = m
	return in
}

func in(group, id string) Container { return Container{ID: id, Group: group} }

func (c Container) cap(mib int) Container   { c.CapMiB = &mib; return c }
func (c Container) least(mib int) Container { c.MinimumMiB = mib; return c }
func (c Container) holds(mib int) Container { c.InUseMiB = mib; return c }
func (c Container) prio(p int) Container    { c.Priority = p; return c }
func (c Container) at(s float64) Container  { c.ArrivedS = s; return c }

func TestDecide(t *testing.T) {
	type shares []int
	type rules []string
	for _, tc := range []struct {
		name   string
		in     Input
		shares shares
		rules  rules
	}{
		{"nothing on the card", two(), shares{}, rules{}},
		{"one container has all", two(in("g", "a")), shares{1000}, rules{RuleWeight}},
		{"one container with a cap: the rest is not given", two(in("g", "a").cap(300)), shares{300}, rules{RuleCap}},
		{"groups divide, then their containers", two(in("g", "a"), in("h", "b"), in("h", "c")), shares{500, 250, 250}, rules{RuleWeight, RuleWeight, RuleWeight}},
		{"the last MiB: by id", two(in("g", "c"), in("g", "b"), in("g", "a")), shares{333, 333, 334}, rules{RuleWeight, RuleWeight, RuleWeight}},
		{"priority, across groups", two(in("g", "a").prio(60), in("h", "b").prio(40)), shares{600, 400}, rules{RuleWeight, RuleWeight}},
		{"priority, with one at the default", two(in("g", "a").prio(75), in("g", "b")), shares{600, 400}, rules{RuleWeight, RuleWeight}},
		{"no container starves", two(in("g", "a").prio(1), in("h", "b").prio(100)), shares{250, 750}, rules{RuleFloor, RuleWeight}},
		{"what one does not want goes to others, by weight", two(in("g", "a").cap(100), in("h", "b").prio(60), in("h", "c").prio(40)),
			shares{100, 540, 360}, rules{RuleCap, RuleWeight, RuleWeight}},
		{"a cap of nothing", two(in("g", "a").cap(0), in("h", "b").cap(0).holds(7)), shares{0, 7}, rules{RuleCap, RuleInUse}},
		{"a cap beyond the card", two(in("g", "a").cap(5000)), shares{1000}, rules{RuleWeight}},
		{"the minimum is respected", two(in("g", "a").least(700), in("h", "b")), shares{700, 300}, rules{RuleMinimum, RuleWeight}},
		{"a cap bounds the minimum", two(in("g", "a").least(700).cap(600), in("h", "b")), shares{600, 400}, rules{RuleCap, RuleWeight}},
		{"minima leave less than the floor", two(in("g", "a").least(900), in("h", "b")), shares{900, 100}, rules{RuleMinimum, RuleFloorShort}},
		{"minima that do not fit", two(in("g", "a").least(900), in("h", "b").least(300)), shares{700, 300}, rules{RuleMinimumShort, RuleMinimum}},
		{"what is in use goes before a minimum", two(in("g", "a").least(900), in("h", "b").holds(400)), shares{600, 400}, rules{RuleMinimumShort, RuleInUse}},
		{"never below what is in use", two(in("g", "a").holds(650), in("h", "b")), shares{650, 350}, rules{RuleInUse, RuleWeight}},
		{"all is in use", two(in("g", "a").holds(1000), in("h", "b")), shares{1000, 0}, rules{RuleInUse, RuleFloorShort}},
		{"more is in use than there is", two(in("g", "a").holds(900), in("h", "b").holds(200), in("h", "c")), shares{900, 200, 0}, rules{RuleOver, RuleOver, RuleOver}},

		{"static: a part of the group's part", two(in("h", "b"), in("h", "c")).mode(Static), shares{250, 250}, rules{RuleStaticPart, RuleStaticPart}},
		{"static: a cap instead, nothing is handed on", two(in("g", "a").cap(100), in("h", "b").cap(700), in("h", "c")).mode(Static),
			shares{100, 650, 250}, rules{RuleCap, RuleStaticCut, RuleStaticPart}},
		{"static: priority does not count", two(in("g", "a").prio(100), in("h", "b").prio(1)).mode(Static), shares{500, 500}, rules{RuleStaticPart, RuleStaticPart}},
		{"static: in use, minimum", two(in("g", "a").holds(300), in("g", "b").least(400), in("h", "c")).mode(Static),
			shares{300, 400, 300}, rules{RuleInUse, RuleMinimum, RuleStaticCut}},

		{"whole card: to the highest priority", two(in("g", "a"), in("h", "b").prio(60)).mode(WholeCard), shares{0, 1000}, rules{RuleWholeCardWait, RuleWholeCard}},
		{"whole card: to the first", two(in("g", "a").at(2), in("h", "b").at(1)).mode(WholeCard), shares{0, 1000}, rules{RuleWholeCardWait, RuleWholeCard}},
		{"whole card: by id", two(in("g", "b"), in("h", "a")).mode(WholeCard), shares{0, 1000}, rules{RuleWholeCardWait, RuleWholeCard}},
		{"whole card: its holder keeps it", two(in("g", "a").prio(100), in("h", "b").holds(5)).mode(WholeCard), shares{0, 1000}, rules{RuleWholeCardWait, RuleWholeCard}},
		{"whole card: two had it before the mode changed", two(in("g", "a").holds(10), in("h", "b").holds(5).prio(60)).mode(WholeCard), shares{10, 990}, rules{RuleInUse, RuleWholeCard}},
		{"whole card: more is in use than there is", two(in("g", "a").holds(1001), in("h", "b")).mode(WholeCard), shares{1001, 0}, rules{RuleOver, RuleOver}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.NoError(t, tc.in.Validate())
			out := Decide(tc.in)
			got, by, sum := shares{}, rules{}, 0
			for i, c := range out.Containers {
				must.Eq(t, tc.in.Containers[i].ID, c.ID)
				got, by, sum = append(got, c.ShareMiB), append(by, c.Rule), sum+c.ShareMiB
			}
			must.Eq(t, tc.shares, got, must.Sprintf("%+v", out))
			must.Eq(t, tc.rules, by, must.Sprintf("%+v", out))
			must.Eq(t, sum, out.GivenMiB)
			must.Eq(t, max(sum-1000, 0), out.OverMiB)
		})
	}
}

func TestDecide_modesByGroup(t *testing.T) {
	static := Decide(two().mode(Static))
	must.Eq(t, 0.5, static.Groups[0].Share)
	must.Eq(t, 500, static.Groups[0].MemoryMiB)
	must.Eq(t, RuleStatic, static.Groups[0].Rule)
	must.Eq(t, 0, Decide(two().mode(WholeCard)).Groups[0].MemoryMiB)
	whole := Decide(two(in("h", "b")).mode(WholeCard))
	must.Eq(t, 0, whole.Groups[0].Share)
	must.Eq(t, 1, whole.Groups[1].Share)
	must.Eq(t, 1000, whole.Groups[1].MemoryMiB)
	must.SliceEmpty(t, Decide(Input{MemoryMiB: 1}).Groups)
}

func TestCoefficients_of(t *testing.T) {
	g := Group{Jobs: 1, Properties: map[string]Property{"user": {"a", 1}}}
	for _, tc := range []struct {
		name string
		all  Coefficients
		own  Coefficients
		want map[string]float64
	}{
		{"count only", Coefficients{Scheme: CountOnly}, Coefficients{}, map[string]float64{Count: 1, "user": 0}},
		{"equal", Coefficients{Scheme: Equal}, Coefficients{}, map[string]float64{Count: 0.5, "user": 0.5}},
		{"own ones go first", Coefficients{Scheme: Equal}, Coefficients{By: map[string]float64{"user": 1}}, map[string]float64{Count: 0, "user": 1}},
		{"an unknown property is scaled away", Coefficients{By: map[string]float64{Count: 0.1, "user": 0.3, "size": 0.6}}, Coefficients{}, map[string]float64{Count: 0.25, "user": 0.75}},
		{"nothing is left: the count", Coefficients{By: map[string]float64{"size": 1}}, Coefficients{}, map[string]float64{Count: 1, "user": 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := g
			g.Coefficients = tc.own
			got := tc.all.of(g)
			must.Eq(t, len(tc.want), len(got))
			for name, want := range tc.want {
				must.InDelta(t, want, got[name], 1e-15)
			}
		})
	}
}

// Equal ranks have equal weight, and a property with one value for all has none.
func TestDecide_ranks(t *testing.T) {
	in := two()
	in.Coefficients = Coefficients{Scheme: Equal}
	in.Groups[0].Properties = map[string]Property{"app": {"a", 2}}
	in.Groups[1].Properties = map[string]Property{"app": {"b", 2}}
	for _, g := range Decide(in).Groups {
		must.Eq(t, 0.5, g.Set)
	}
	in.Groups[1].Properties = map[string]Property{"app": {"a", 2}}
	for _, g := range Decide(in).Groups {
		must.Eq(t, 0.75, g.Set, must.Sprint("Σ over the distinct values, as in figure 11"))
		must.Eq(t, 0.5, g.Share)
	}
}

func TestDecide_why(t *testing.T) {
	out := Decide(Example())
	must.Eq(t, []string{
		"as much as it wants; others get the rest; weight 0.2191 of 0.847, in use 1536 MiB, wants 2048 MiB",
		"by its weight; weight 0.2348 of 0.847, in use 5200 MiB, needs 5389 MiB",
		"by its weight; weight 0.1558 of 0.847, in use 539 MiB",
		"raised to the floor, 0.5 of an equal part; weight 0.03896 of 0.847, in use 0 MiB",
		"keeps what it holds, which exceeds its part; weight 0.1983 of 0.847, in use 8192 MiB, needs 3072 MiB",
	}, whys(out))
	for _, tc := range []struct {
		in   Input
		want []string
	}{
		{two(in("g", "a").holds(900), in("h", "b").holds(200)), []string{
			"more is in use than the budget: all keep what they hold, and no share grows until some is freed; weight 0.5 of 1, in use 900 MiB",
			"more is in use than the budget: all keep what they hold, and no share grows until some is freed; weight 0.5 of 1, in use 200 MiB",
		}},
		{two(in("g", "a").least(900), in("h", "b").least(300)), []string{
			"the minima do not fit on the card together: by weight, up to the minimum; weight 0.5 of 1, in use 0 MiB, needs 900 MiB",
			"raised to its minimum; weight 0.5 of 1, in use 0 MiB, needs 300 MiB",
		}},
		{two(in("g", "a").least(900), in("h", "b")), []string{
			"raised to its minimum; weight 0.5 of 1, in use 0 MiB, needs 900 MiB",
			"the usage and minima of others leave it less than the floor of 250 MiB; weight 0.5 of 1, in use 0 MiB",
		}},
		{two(in("g", "a").cap(100), in("h", "b").cap(700), in("h", "c")).mode(Static), []string{
			"as much as it wants; weight 1 of 3, in use 0 MiB, wants 100 MiB",
			"cut: parts, caps and what is in use do not fit together; weight 1 of 3, in use 0 MiB, wants 700 MiB",
			"its equal part: 1/2 of the card for the group, 1/2 of that; weight 1 of 3, in use 0 MiB",
		}},
		{two(in("g", "a"), in("h", "b")).mode(WholeCard), []string{
			"has the card alone; weight 1 of 2, in use 0 MiB",
			"waits: a has the card; weight 1 of 2, in use 0 MiB",
		}},
	} {
		must.Eq(t, tc.want, whys(Decide(tc.in)))
	}
	must.Eq(t, "static: each of 2 groups has an equal part, regardless of need; 1 on the card: 500 MiB", Decide(two(in("g", "a")).mode(Static)).Groups[0].Why)
	whole := Decide(two(in("g", "a")).mode(WholeCard))
	must.Eq(t, "the whole card belongs to its container a: 1000 MiB", whole.Groups[0].Why)
	must.Eq(t, "the card belongs to one container at a time, and to none of this group: 0 MiB", whole.Groups[1].Why)
	must.Eq(t, "not enough profiles yet, only the number of jobs counts: Set = 1·1/2 (count) = 0.5, of Σ Set 1; nothing on the card: 500 MiB", Decide(two()).Groups[0].Why)
}

func whys(out Output) (whys []string) {
	for _, c := range out.Containers {
		whys = append(whys, c.Why)
	}
	return whys
}

func TestWindow(t *testing.T) {
	job := func(user, app string, size float64, name string) Job {
		return Job{map[string]Value{"user": {user, 0}, "application": {app, 0}, "size": {name, size}}}
	}
	var jobs []Job
	for _, of := range []struct {
		jobs      int
		app, size string
		mib       float64
		user      string
		peak      float64
	}{
		{12, "App_1", "10M", 10, "User_1", 700}, {5, "App_1", "20M", 20, "User_2", 900}, {8, "App_2", "", 0, "User_3", 500},
		{2, "App_2", "", 0, "User_3", 500}, {3, "App_2", "50M", 50, "User_3", 500},
	} {
		for range of.jobs {
			j := job(of.user, of.app, of.mib, of.size)
			j.Properties["user"] = Value{of.user, of.peak}
			jobs = append(jobs, j)
		}
	}
	groups := Window(jobs, []string{"user", "application", "size"})
	want := figure11()
	want[2].Jobs += want[3].Jobs // groups 3 and 4 differ in nothing that the figure shows
	want = append(want[:3], want[4])
	want[2].ID, want[3].ID = "user=User_3,application=App_2", "user=User_3,application=App_2,size=50M"
	want[0].ID, want[1].ID = "user=User_1,application=App_1,size=10M", "user=User_2,application=App_1,size=20M"
	must.Eq(t, want, groups)

	// A property on which the jobs differ is left out.
	groups = Window(jobs, []string{"user"})
	must.Eq(t, Group{ID: "user=User_3", Jobs: 13, Properties: map[string]Property{
		"user": {"User_3", 1}, "application": {"App_2", 1},
	}}, groups[2])

	must.Eq(t, "user=a%3Db%2C", Key(job("a=b,", "", 0, ""), []string{"user", "size"}))
	must.Eq(t, "all", Key(Job{}, []string{"user"}))
	must.Eq(t, []Group{{ID: "all", Jobs: 2, Properties: map[string]Property{}}}, Window(make([]Job, 2), nil)) // JSON: {}
	must.SliceEmpty(t, Window(nil, []string{"user"}))
}

func TestCoefficients_JSON(t *testing.T) {
	for text, want := range map[string]Coefficients{
		`"count-only"`:             {Scheme: CountOnly},
		`"equal"`:                  {Scheme: Equal},
		`{"count":0.5,"user":0.5}`: {By: map[string]float64{Count: 0.5, "user": 0.5}},
		`null`:                     {},
	} {
		var got Coefficients
		must.NoError(t, json.Unmarshal([]byte(text), &got))
		must.Eq(t, want, got)
		back, err := json.Marshal(got)
		must.NoError(t, err)
		must.Eq(t, text, string(back))
	}
	for _, text := range []string{`"euqal"`, `1`, `[1]`, `{"count":"1"}`, `true`} {
		var got Coefficients
		must.EqError(t, got.UnmarshalJSON([]byte(text)), `must be "count-only", "equal" or an object of numbers, got `+text)
	}
}
