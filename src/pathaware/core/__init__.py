"""What adaptation is: learners, paths, rules, heads and meta-gradients."""
