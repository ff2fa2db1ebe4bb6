# The shim's ACL policy: read nodes, jobs and status files, register jobs and tag their
# versions, signal tasks, and keep its state in variables. For a token:
#
#   nomad acl policy apply ebbtide-shim jobspecs/acl/shim.hcl
#   nomad acl token create -name ebbtide-shim -policy ebbtide-shim
#
# For the job jobspecs/shim.hcl, which needs no token:
#
#   nomad acl policy apply -namespace ebbtide -job ebbtide-shim ebbtide-shim jobspecs/acl/shim.hcl
#
# Nomad's event stream requires read-job in every namespace. To restrict the shim to some
# namespaces, leave "*" with list-jobs and read-job, and repeat the whole rule for each
# namespace that it may change and for leader.namespace: the rule for a namespace replaces
# that for "*".
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
