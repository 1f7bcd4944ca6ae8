-- set: set a string, unless a greater token has been there.
-- KEYS[1]  key
-- KEYS[2]  fence: the greatest token so far, as text; it has no TTL
-- ARGV[1]  token (text): from 1 to 2^63-1
-- ARGV[2]  value
-- ARGV[3]  ttl_ms: 0 without expiry
-- returns  1, or 0 if the token is stale
local key, fence = KEYS[1], KEYS[2]
local token, value, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

-- Numbers of Lua are exact up to 2^53 only, so tokens are compared as text: first by their lengths.
local latest = redis.call('get', fence)
if latest then
  if not string.match(latest, '^[1-9]%d*$') then
    return redis.error_reply('ERR the fence ' .. fence .. ' is no token')
  end
  local is_stale = #token < #latest or (#token == #latest and token < latest)
  if is_stale then
    return 0
  end
end
redis.call('set', fence, token)
if ttl_ms == '0' then
  redis.call('set', key, value)
else
  redis.call('set', key, value, 'px', ttl_ms)
end
return 1
