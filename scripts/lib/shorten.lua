-- lib/shorten: lower a key's TTL, for a lock that is released before its minimum hold is over.
-- defines  shorten(key, ttl_ms)

-- shorten lowers a key's TTL to ttl_ms, and never raises it: a late copy of a release then changes
-- nothing. It always writes, and a full Redis allows that and the writes after it.
local function shorten(key, ttl_ms)
  local left = redis.call('pttl', key)
  if left < 0 or left > tonumber(ttl_ms) then
    left = ttl_ms
  end
  redis.call('pexpire', key, left)
end
