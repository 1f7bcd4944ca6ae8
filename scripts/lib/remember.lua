-- lib/remember: keep the answer to a request, so that a copy of it changes nothing more.
-- defines  remember(memory_key, answer, ttl_ms): returns the answer;
--          remember_list(memory_key, answer, ttl_ms): the same for a list of strings, or 0. A copy
--          gets it by cjson.decode
local function remember(memory_key, answer, ttl_ms)
  redis.call('set', memory_key, answer, 'px', ttl_ms)
  return answer
end

local function remember_list(memory_key, answer, ttl_ms)
  remember(memory_key, cjson.encode(answer), ttl_ms)
  return answer
end
