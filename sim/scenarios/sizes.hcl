# Jobs that arrive for most of the time that they need together, so that a job which is put last
# stays behind. go run ./sim/sizes makes their totals wrong.
node "node" { cores = 2 }

workload "generated" {
  jobs         = 20
  median_cpu_s = 200
  sigma        = 1
  spread       = 0.8
}
