-- lib/longer: tell the client which leases last longer than it asked for.
--
-- That is usual after an Extend, or if others share the lease. But it may also mean that the
-- server's clock was set back. The client knows what it has promised, and may then shorten the
-- lease.
-- uses     lib/clock
-- defines  kept_for(left, ttl_ms): the element of a reply for a lease that was kept, and had left
--          ms: 1, or left if that is longer than asked for;
--          with_time(kept): the reply; if a lease lasts longer, the server's time follows, ms

local any_longer = false

local function kept_for(left, ttl_ms)
  if left <= math.max(tonumber(ttl_ms), 1) then
    return 1
  end
  any_longer = true
  return left
end

local function with_time(kept)
  if any_longer then
    kept[#kept + 1] = now_ms()
  end
  return kept
end
