-- lib/extend: raise a key's TTL.
-- defines  extend(key, ttl_ms): the TTL that it had, ms;
--          renew(key, ttl_ms): for a copy of an acquisition. It always writes, because a WAIT that
--          comes after a script without a write waits for nothing

-- extend raises a key's TTL to ttl_ms, and never shortens it.
local function extend(key, ttl_ms)
  local left = redis.call('pttl', key)
  if left < tonumber(ttl_ms) then
    redis.call('pexpire', key, ttl_ms)
  end
  return left
end

local function renew(key, ttl_ms)
  local left = redis.call('pttl', key)
  redis.call('pexpire', key, math.max(left, tonumber(ttl_ms)))
end
