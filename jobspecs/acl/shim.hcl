# What the shim may do: see nodes, jobs and their status files, register jobs and tag their
# versions, send tasks signals, and remember in variables. For a token:
#
#   nomad acl policy apply ebbtide-shim jobspecs/acl/shim.hcl
#   nomad acl token create -name ebbtide-shim -policy ebbtide-shim
#
# For the job jobspecs/shim.hcl, which needs no token:
#
#   nomad acl policy apply -namespace default -job ebbtide-shim ebbtide-shim jobspecs/acl/shim.hcl
#
# Nomad's event stream asks for read-job in every namespace. To keep the shim's hands off
# some, leave "*" at list-jobs and read-job, and repeat the whole for each of the others
# and for leader.namespace: a rule for one namespace takes the place of that for "*".
namespace "*" {
  capabilities = ["list-jobs", "read-job", "plan-job", "register-job", "alloc-lifecycle", "read-fs", "tag-job-version"]

  # leader.path
  variables {
    path "ebbtide/shim/*" {
      capabilities = ["list", "read", "write", "destroy"]
    }
  }
}

node {
  policy = "read"
}
