"""Networks: trunks, pretrained weights, heads, preprocessing."""
