-- lib/extend: raise a key's TTL.
-- defines  extend(key, ttl_ms)

-- extend raises a key's TTL to ttl_ms, and never shortens it.
local function extend(key, ttl_ms)
  if redis.call('pttl', key) < tonumber(ttl_ms) then
    redis.call('pexpire', key, ttl_ms)
  end
end
