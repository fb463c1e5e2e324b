"""Links 7, 10 and 11: the kubelet and its Node."""
