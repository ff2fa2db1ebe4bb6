package auto

import (
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
)

type Kind string

const (
	Training Kind = "training"
	Service  Kind = "service"
)

type Task struct {
	ID                           string
	Kind                         Kind
	Category                     policy.Category
	Growth, Progress             *float64
	Goal                         tradl.Goal
	Value, Acceptable, Objective *float64
	State                        tradl.State
	ObjectiveS                   float64
	ResponseS                    *float64
	Use, Limit                   float64
}
type Params struct {
	Flowcon      flowcon.Params
	Tradl        tradl.Params
	Dqoes        dqoes.Params
	ServiceShare float64
}

func DefaultParams() Params {
	return Params{flowcon.DefaultParams(), tradl.DefaultParams(), dqoes.DefaultParams(), 0.8}
}

type Input struct {
	Tasks                                     []Task
	Services                                  dqoes.State
	IntervalS, InitialIntervalS, MaxIntervalS float64
	Event                                     flowcon.Event
	Params                                    Params
}

func (in Input) Validate() error { return nil }

type Decision struct {
	ID         string
	Kind       Kind
	Category   policy.Category
	Class      dqoes.Class
	State      tradl.State
	Limit      float64
	Stop       bool
	Unmeasured bool
	Rule, Why  string
}
type Output struct {
	Tasks     []Decision
	Alpha     float64
	Services  dqoes.State
	IntervalS float64
}

func Decide(in Input) Output { return Output{} }
